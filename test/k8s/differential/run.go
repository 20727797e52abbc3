package differential

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"

	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// Result is what came of a case.
type Result struct {
	Asked    int           // facts compared
	Answers  oracle.Digest // of nkp
	Accepted map[string]int
	Failures []oracle.Disagreement // at the first moment with any
}

// What a failure can also be about; these have no answer of kube-proxy's.
const (
	ToldChanges = "changes"     // the changes do not lead to the model
	Incremental = "incremental" // a tracker that starts now sees another model
	Manifests   = "manifests"   // the same objects from a file give another model
	Panic       = "panic"
)

// replay replays the case on both sides and compares them whenever it says so. dir is for manifests.
func replay(c oracle.Case, dir string) (r Result) {
	r.Accepted = map[string]int{}
	defer func() {
		if p := recover(); p != nil {
			r.Failures = []oracle.Disagreement{{Fact: oracle.Fact{What: Panic}, Nkp: fmt.Sprintf("%v\n%s", p, debug.Stack())}}
		}
	}()
	k, n := NewKubeProxy(), oracle.NewNkp()
	written := map[k8s.Ref]k8s.Object{}
	for i, e := range c.Events {
		switch {
		case e.Asks():
			k.Sync()
			if err := n.Sync(); err != nil {
				r.Failures = append(r.Failures, oracle.Disagreement{Fact: oracle.Fact{What: ToldChanges}, Nkp: err.Error()})
			}
			r.compare(k, n)
			r.restart(n, written)
			if c.Regular && i == len(c.Events)-1 {
				r.manifests(n, written, dir)
			}
			if len(r.Failures) > 0 {
				return r
			}
		case e.Object == nil:
			delete(written, e.Gone)
			k.Apply(e.Gone, nil)
			n.Apply(e.Gone, nil)
		default:
			written[e.Ref()] = e.Object
			o := stored(e.Object)
			k.Apply(e.Ref(), o)
			n.Apply(e.Ref(), o)
		}
	}
	return r
}

// compare asks both sides everything.
func (r *Result) compare(k *KubeProxy, n *oracle.Nkp) {
	theirs, ours := k.Facts(), n.Facts()
	r.Answers.Add(ours)
	r.Asked += len(theirs)
	for _, d := range oracle.Differences(theirs, ours) {
		names := explain(k, d)
		for _, name := range names {
			r.Accepted[name]++
		}
		if len(names) == 0 {
			r.Failures = append(r.Failures, d)
		}
	}
}

// restart compares nkp with an nkp that starts now.
func (r *Result) restart(n *oracle.Nkp, written map[k8s.Ref]k8s.Object) {
	fresh := oracle.NewNkp()
	for ref, o := range written {
		fresh.Apply(ref, stored(o))
	}
	_ = fresh.Sync() // told is the model at the first Flush
	if a, b := fresh.Model.View(nil), n.Model.View(nil); !reflect.DeepEqual(a, b) {
		r.Failures = append(r.Failures, oracle.Disagreement{Fact: oracle.Fact{What: Incremental}, Nkp: text(b) + "\nafter a start:\n" + text(a)})
	}
}

// manifests compares nkp with what it makes of the same objects in a file, with defaults of its own.
func (r *Result) manifests(n *oracle.Nkp, written map[k8s.Ref]k8s.Object, dir string) {
	var raw []byte
	for _, o := range written {
		doc, err := yaml.Marshal(o)
		if err != nil {
			panic(err)
		}
		raw = append(append(raw, "---\n"...), doc...)
	}
	path := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		panic(err)
	}
	loaded := manifest.Load(path)
	tracker := k8s.NewTracker(k8s.Options{NodeName: oracle.ThisNode})
	tracker.Apply(loaded.Objects)
	model, _ := tracker.Flush()
	if a, b := text(model.View(nil)), text(n.Model.View(nil)); a != b || loaded.Err() != nil {
		r.Failures = append(r.Failures, oracle.Disagreement{Fact: oracle.Fact{What: Manifests}, Nkp: fmt.Sprintf("%s\nfrom manifests:\n%s\nerrors: %v", b, a, loaded.Err())})
	}
}

// text returns a view as plan -o json prints it.
func text(v k8s.View) string {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err)
	}
	return string(raw)
}
