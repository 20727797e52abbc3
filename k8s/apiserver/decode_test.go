package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/k8s"
)

// testLists returns, for each kind, a list with objects of every size and with managed fields.
func testLists() map[k8s.Kind]runtime.Object {
	head := metav1.ListMeta{ResourceVersion: "4711", Continue: "more"}
	services, slices := &v1.ServiceList{ListMeta: head}, &discoveryv1.EndpointSliceList{ListMeta: head}
	managed := func(m *metav1.ObjectMeta, i int) {
		m.Generation = int64(i)
		m.Finalizers = []string{"f"}
		m.ManagedFields = nil
		for j := range i % 3 {
			m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{Manager: fmt.Sprint("m", j),
				FieldsV1: metav1.NewFieldsV1(`"` + strings.Repeat("x", i*i) + `"`)})
		}
	}
	for i := range 40 {
		s, e := apiService(fmt.Sprint("s", i), nil), apiSlice(fmt.Sprint("e", i), map[string]string{discoveryv1.LabelServiceName: "s"})
		managed(&s.ObjectMeta, i)
		managed(&e.ObjectMeta, i)
		for range i * 5 {
			e.Endpoints = append(e.Endpoints, e.Endpoints[0])
		}
		services.Items, slices.Items = append(services.Items, *s), append(slices.Items, *e)
	}
	return map[k8s.Kind]runtime.Object{
		k8s.KindService: services, k8s.KindEndpointSlice: slices,
		k8s.KindNode:        &v1.NodeList{ListMeta: head, Items: []v1.Node{*apiNode("n")}},
		k8s.KindServiceCIDR: &networkingv1.ServiceCIDRList{ListMeta: head},
	}
}

// encodeAs returns a list as an API server writes it.
func encodeAs(t testing.TB, mediaType string, list runtime.Object) []byte {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	data, err := runtime.Encode(scheme.Codecs.WithoutConversion().EncoderForVersion(info.Serializer, nil), list)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func resourceOf(kind k8s.Kind) *resource {
	c := fake.NewClientset()
	for _, r := range resourcesOf(c, "", "") {
		if r.kind == kind {
			return &r
		}
	}
	return nil
}

// What is read item by item is what the generated code reads at once, trimmed, in either encoding.
func TestDecodeList(t *testing.T) {
	for kind, list := range testLists() {
		want := list.DeepCopyObject()
		var objects []runtime.Object
		if err := meta.EachListItem(want, func(o runtime.Object) error {
			trim(o)
			objects = append(objects, o)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
			got, err := resourceOf(kind).decodeList(iotest.HalfReader(bytes.NewReader(encodeAs(t, mediaType, list))))
			if err != nil {
				t.Errorf("%s in %s: %v", kind, mediaType, err)
				continue
			}
			if got.ResourceVersion != "4711" || got.Continue != "more" || len(got.Items) != len(objects) {
				t.Errorf("%s in %s: %d items, version %q, continue %q", kind, mediaType, len(got.Items), got.ResourceVersion, got.Continue)
				continue
			}
			for i, o := range got.Items {
				if !reflect.DeepEqual(o, objects[i]) {
					t.Errorf("%s in %s: item %d is %+v, want %+v", kind, mediaType, i, o, objects[i])
				}
			}
		}
	}
}

// A list that ends too early, or is of another kind, is an error: an empty or short list would take Services away.
func TestDecodeListInPart(t *testing.T) {
	list := testLists()[k8s.KindService].(*v1.ServiceList)
	list.Items = list.Items[:4]
	data := encodeAs(t, runtime.ContentTypeProtobuf, list)
	for n := range len(data) - 4 { // behind the list come two empty strings
		if got, err := resourceOf(k8s.KindService).decodeList(bytes.NewReader(data[:n])); err == nil {
			t.Fatalf("%d of %d bytes are a list of %d", n, len(data), len(got.Items))
		}
	}
	if _, err := resourceOf(k8s.KindNode).decodeList(bytes.NewReader(data)); err == nil || !strings.Contains(err.Error(), `of kind "ServiceList"`) {
		t.Errorf("another kind: %v", err)
	}
	broken := errors.New("the connection broke")
	if _, err := resourceOf(k8s.KindService).decodeList(io.MultiReader(bytes.NewReader(data[:len(data)/2]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a broken connection: %v", err)
	}
}

func FuzzDecodeList(f *testing.F) {
	for _, list := range testLists() {
		f.Add(encodeAs(f, runtime.ContentTypeProtobuf, list))
	}
	f.Add([]byte("k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Add([]byte("k8s\x00\x0a\x00\x12\x03\x12\x01\x0a"))
	resources := []*resource{resourceOf(k8s.KindService), resourceOf(k8s.KindEndpointSlice), resourceOf(k8s.KindNode), resourceOf(k8s.KindServiceCIDR)}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, r := range resources {
			list, err := r.decodeList(bytes.NewReader(data))
			if err == nil && len(list.Items) > len(data) {
				t.Errorf("%d items in %d bytes", len(list.Items), len(data))
			}
		}
	})
}
