package manifest

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

const aService = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`

// jsonStreams are texts in JSON, some nearly, and how many documents and objects they are.
var jsonStreams = []struct {
	text               string
	documents, objects int
}{
	{`{"kind":"List","items":[` + aService + `,` + strings.Replace(aService, "web", "other", 1) + `],"metadata":{"resourceVersion":""}}`, 1, 2},
	{` { "metadata" : {"name":"}]{"} , "items" : [ ` + aService + ` ] , "kind" : "ServiceList" } `, 1, 1},
	{aService + "\n" + strings.Replace(aService, "web", "other", 1), 2, 2},
	{"# a comment\n" + aService + "\n" + strings.Replace(aService, "web", "other", 1) + "\n# another\n", 2, 2},
	{aService + "\n{kind: List}", 2, 1},
	{aService + "\n{", 2, 1},
	{"# a comment\n" + aService + "\n", 1, 1},
	{aService + "\n---\n" + strings.Replace(aService, "web", "other", 1), 2, 2},
	{`{"kind":"List","items":[]}`, 1, 0},
	{`{"kind":"List","items":[` + aService + aService + `]}`, 1, 0},
	{`{"kind":"List","items":[` + aService + `],"\u0069tems":[]}`, 1, 0},
	{`{"kind":"List","metadata":{"items":[` + aService + `]}}`, 1, 0},
	{`{"kind":"Pod","items":[` + aService + `]}`, 1, 0},
	{`{"kind":"List","items":[` + aService + `]`, 1, 0},
	{`{kind: List, items: [` + aService + `]}`, 1, 1},
}

func TestJSONStreams(t *testing.T) {
	for _, c := range jsonStreams {
		if n := len(documents([]byte(c.text))); n != c.documents {
			t.Errorf("%d documents, want %d: %s", n, c.documents, c.text)
		}
		if n := len(decode("in", []byte(c.text)).objects); n != c.objects {
			t.Errorf("%d objects, want %d: %s", n, c.objects, c.text)
		}
	}
}

// After one object of many has changed, only its file is read, and only the object is reported.
func TestReloadOnlyChanged(t *testing.T) {
	const services = 40
	for _, form := range []string{"yaml", "json", "directory"} {
		t.Run(form, func(t *testing.T) {
			path, changed := writeHuge(t, form, services)
			sink := &counter{}
			f := newFollower(path, sink)
			defer f.watcher.Close()
			f.look()
			long := time.Now().Add(-time.Hour)
			for name := range f.files {
				must(t, os.Chtimes(name, long, long))
			}
			f.look()
			read := map[string]time.Time{}
			for name, file := range f.files {
				read[name] = file.read
			}

			text, err := os.ReadFile(changed)
			if err != nil {
				t.Fatal(err)
			}
			write(t, changed, string(bytes.Replace(text, []byte("8080"), []byte("18080"), 1)))
			sink.changes = 0
			f.look()

			var again []string
			for name, file := range f.files {
				if !file.read.Equal(read[name]) {
					again = append(again, name)
				}
			}
			if len(f.published) != 2*services || sink.changes != 1 || len(again) != 1 || again[0] != changed {
				t.Errorf("of %d objects %d are reported as changed, read: %s", len(f.published), sink.changes, again)
			}
		})
	}
}
