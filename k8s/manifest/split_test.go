package manifest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// jsonLists are documents in JSON, some nearly, and how many items are cut out of them; 0: the document stays whole. FuzzDecode checks
// that what comes out is the same.
var jsonLists = []struct {
	text  string
	items int
}{
	{`{"kind":"List","apiVersion":"v1","items":[` + aService + `,` + strings.Replace(aService, "web", "other", 1) + `],"metadata":{"resourceVersion":""}}`, 2},
	{` { "metadata" : {"name":"}]{"} , "items" : [ ` + aService + ` ] , "kind" : "ServiceList" } `, 1},
	{`{"kind":"List","items":[{"kind":"X","a":"\\\"]}","items":[{"b":[[{}]]}]},` + aService + `]}`, 2},
	{`{"kind":"List","items":[]}`, 0},
	{`{"kind":"List","items":[` + aService + `,]}`, 0},
	{`{"kind":"List","items":[,` + aService + `]}`, 0},
	{`{"kind":"List","items":[` + aService + aService + `]}`, 0},
	{`{"kind":"List","items":[` + aService + `,1]}`, 0},
	{`{"kind":"List","items":[` + aService + `,"x"]}`, 0},
	{`{"kind":"List","items":[` + aService + `],"items":[]}`, 0},
	{`{"kind":"List","items":[` + aService + `],"\u0069tems":[]}`, 0},
	{`{"kind":"List","metadata":{"items":[` + aService + `]}}`, 0},
	{`{"kind":"Pod","items":[` + aService + `]}`, 0},
	{`{"kind":"List","items":[` + aService + `]`, 0},
	{`{kind: List, items: [` + aService + `]}`, 0},
}

const aService = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`

func TestSplitJSONList(t *testing.T) {
	for _, list := range jsonLists {
		pieces := split([]byte(list.text))
		if want := max(1, list.items); len(pieces) != want || (pieces[0].item > 0) != (list.items > 0) {
			t.Errorf("%d pieces, want %d items: %s", len(pieces), list.items, list.text)
		}
	}
	// Two Lists that follow each other without a marker.
	if pieces := split([]byte(jsonLists[0].text + "\n" + jsonLists[1].text)); len(pieces) != 3 || pieces[2].document != 2 {
		t.Errorf("%+v", pieces)
	}
}

// TestReloadOnlyChanged counts the files that are read and the documents that are parsed after one object of many has changed.
func TestReloadOnlyChanged(t *testing.T) {
	const services = 40
	for _, form := range []string{"yaml", "json", "directory"} {
		t.Run(form, func(t *testing.T) {
			path, changed := writeHuge(t, form, services)
			sink := &counter{}
			f := newFollower(path, sink)
			defer f.watcher.Close()
			f.look(nil)
			before := map[k8s.Object]bool{}
			for _, e := range f.published {
				before[e.object] = true
			}
			read := map[string]os.FileInfo{}
			for name, file := range f.files {
				read[name] = file.info
			}
			text, err := os.ReadFile(changed)
			if err != nil {
				t.Fatal(err)
			}
			write(t, changed, string(bytes.Replace(text, []byte("8080"), []byte("18080"), 1)))
			sink.changes = 0
			f.look(func(path string) bool { return path == changed })
			parsed, again := 0, []string{}
			for _, e := range f.published {
				if !before[e.object] {
					parsed++
				}
			}
			for name, file := range f.files {
				if file.info != read[name] {
					again = append(again, name)
				}
			}
			if len(f.published) != 2*services || sink.changes != 1 || parsed != 1 || !slices.Equal(again, []string{changed}) {
				t.Errorf("of %d objects %d were parsed and %d reported as changed, of %d files read: %s", len(f.published), parsed, sink.changes, len(f.files), fmt.Sprint(again))
			}
		})
	}
}
