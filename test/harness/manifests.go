//go:build linux

package harness

import (
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The names of a bed's nodes. nkp runs on the first.
const (
	NodeName  = "node-1"
	OtherNode = "node-2"
)

// Node returns the object of a bed's node.
func Node() *v1.Node {
	return &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: testbed.NodeIP4.String()}, {Type: v1.NodeInternalIP, Address: testbed.NodeIP6.String()},
		}},
	}
}

// Key returns a string that identifies an object by its kind, namespace and name.
func Key(o metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

// WriteManifests replaces the file at path by a List of the objects. A program that follows the file sees the old list or the new one.
func WriteManifests(path string, objects []any) error {
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	temporary := path + ".new" // not a manifest's name: nkp does not read it
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
