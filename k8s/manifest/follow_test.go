package manifest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// recorder is a Sink that keeps what it is told.
type recorder struct {
	mu       sync.Mutex // guards all below: the source calls from its own goroutine
	objects  map[k8s.Ref]k8s.Change
	log      []string // one line for each change, "synced" in between
	problems k8s.Problems
}

func (r *recorder) Apply(changes []k8s.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		r.log = append(r.log, fmt.Sprintf("%s %s", c.Op, c.Ref.Name))
		switch c.Op {
		case k8s.Upsert:
			r.objects[c.Ref] = c
		case k8s.Delete:
			delete(r.objects, c.Ref)
		case k8s.Move:
			o := r.objects[c.Ref]
			o.Origin = c.Origin
			r.objects[c.Ref] = o
		}
	}
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, "synced")
}

func (r *recorder) Problems(p k8s.Problems) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = p
}

// state returns the Services with their cluster IPs, then the number of errors and warnings if there are any.
func (r *recorder) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	for _, ref := range slices.SortedFunc(maps.Keys(r.objects), k8s.Ref.Compare) {
		parts = append(parts, ref.Name+"="+clusterIPOf(r.objects[ref].Object))
	}
	if n := len(r.problems.Errors); n > 0 {
		parts = append(parts, fmt.Sprintf("errors:%d", n))
	}
	if n := len(r.problems.Warnings); n > 0 {
		parts = append(parts, fmt.Sprintf("warnings:%d", n))
	}
	return strings.Join(parts, " ")
}

// takeLog returns what happened since it was last asked.
func (r *recorder) takeLog() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.log, ", ")
	r.log = nil
	return s
}

func clusterIPOf(o k8s.Object) string {
	return strings.TrimPrefix(o.(*v1.Service).Spec.ClusterIP, "10.96.0.")
}

// follow runs a Source until the test ends.
func follow(t *testing.T, path string) *recorder {
	t.Helper()
	r := &recorder{objects: map[k8s.Ref]k8s.Change{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewSource(path).Run(ctx, r) }() // cancel stops it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// wait waits until the state is the wanted one.
func (r *recorder) wait(t *testing.T, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for r.state() != want {
		if time.Now().After(deadline) {
			t.Fatalf("state %q, want %q; problems: %v", r.state(), want, r.problems)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// logged checks what happened since the last check.
func (r *recorder) logged(t *testing.T, want string) {
	t.Helper()
	if got := r.takeLog(); got != want {
		t.Errorf("happened: %q, want %q", got, want)
	}
}

func manifestOf(services ...string) string {
	var docs []string
	for _, s := range services {
		name, ip, _ := strings.Cut(s, "=")
		docs = append(docs, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.0.%s, ports: [{port: 80}]}\n", name, ip))
	}
	return strings.Join(docs, "---\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFollowDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manifests")
	must(t, os.Mkdir(dir, 0o755))
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yml")
	write(t, a, manifestOf("a1=1", "a2=2"))
	write(t, b, manifestOf("b1=11"))
	write(t, filepath.Join(dir, "notes.txt"), "not a manifest")
	write(t, filepath.Join(dir, ".hidden.yaml"), "{")
	r := follow(t, dir)
	r.wait(t, "a1=1 a2=2 b1=11")
	r.logged(t, "upsert a1, upsert a2, upsert b1, synced")

	write(t, a, manifestOf("a1=1", "a2=3")) // edit in place: only what differs is told
	r.wait(t, "a1=1 a2=3 b1=11")
	r.logged(t, "upsert a2")

	write(t, a+".tmp", manifestOf("a1=4", "a2=3")) // rename over
	must(t, os.Rename(a+".tmp", a))
	r.wait(t, "a1=4 a2=3 b1=11")
	r.logged(t, "upsert a1")

	write(t, a, manifestOf("a0=9", "a1=4", "a2=3")) // one more before the others: they move
	r.wait(t, "a0=9 a1=4 a2=3 b1=11")
	r.logged(t, "move a1, move a2, upsert a0")

	write(t, a, manifestOf("a0=9", "a1=4", "a2=x")) // not valid: it stays, the rest is applied
	r.wait(t, "a0=9 a1=4 a2=3 b1=11 errors:1")
	write(t, a, manifestOf("a0=8", "a1=4", "a2=x"))
	r.wait(t, "a0=8 a1=4 a2=3 b1=11 errors:1")
	write(t, a, manifestOf("a0=8", "a2=x")) // what vanished goes, what is broken stays
	r.wait(t, "a0=8 a2=3 b1=11 errors:1")
	write(t, a, manifestOf("a0=8", "a2=5"))
	r.wait(t, "a0=8 a2=5 b1=11")
	r.takeLog()

	write(t, a, manifestOf("a0=7")+"---\n{") // a document that does not parse: nothing of the file goes
	r.wait(t, "a0=7 a2=5 b1=11 errors:1")
	write(t, a, manifestOf("a0=7", "b1=12")) // twice: what was in force stays
	r.wait(t, "a0=7 b1=11 errors:1")
	must(t, os.Remove(b))
	r.wait(t, "a0=7 b1=12")
	write(t, b, "\x00")
	r.wait(t, "a0=7 b1=12 errors:1")
	must(t, os.Remove(b))
	r.wait(t, "a0=7 b1=12")
	r.takeLog()

	must(t, os.Rename(dir, dir+".away")) // the directory is gone for a while
	r.wait(t, "a0=7 b1=12 errors:1")
	must(t, os.Mkdir(dir, 0o755))
	r.wait(t, "warnings:1") // an empty directory is no mistake of ours
	r.logged(t, "delete a0, delete b1")
	write(t, a, manifestOf("a0=1"))
	r.wait(t, "a0=1")
}

func TestFollowFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services.yaml")
	write(t, path, manifestOf("a=1"))
	r := follow(t, path)
	r.wait(t, "a=1")
	must(t, os.Remove(path))
	r.wait(t, "a=1 errors:1")
	write(t, path, manifestOf("a=2"))
	r.wait(t, "a=2")
	r.logged(t, "upsert a, synced, upsert a")
	write(t, path, manifestOf("a=2")+"# a comment\n") // another text, the same object
	write(t, path+".yaml", manifestOf("other=1"))     // another file beside it
	time.Sleep(4 * settle)
	r.logged(t, "")
}

// TestFollowConfigMap swaps the symbolic link through which the kubelet shows a ConfigMap.
func TestFollowConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name, text string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "services.yaml"), text)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", manifestOf("a=1"))
	must(t, os.Symlink("..data/services.yaml", filepath.Join(dir, "services.yaml")))
	r := follow(t, dir)
	file := follow(t, filepath.Join(dir, "services.yaml"))
	r.wait(t, "a=1")
	file.wait(t, "a=1")
	version("..2", manifestOf("a=2"))
	must(t, os.RemoveAll(filepath.Join(dir, "..1")))
	r.wait(t, "a=2")
	file.wait(t, "a=2")
	version("..3", manifestOf("a=3"))
	r.wait(t, "a=3")
	file.wait(t, "a=3")
}

// TestFollowLinkedFile changes a file that is only linked to.
func TestFollowLinkedFile(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(elsewhere, "x.yaml"), manifestOf("a=1"))
	must(t, os.Symlink(filepath.Join(elsewhere, "x.yaml"), filepath.Join(dir, "a.yaml")))
	r := follow(t, dir)
	r.wait(t, "a=1")
	write(t, filepath.Join(elsewhere, "x.yaml"), manifestOf("a=2"))
	r.wait(t, "a=2")
}

// TestFollowBrokenStart starts with nothing that can be used: not synced before it is repaired.
func TestFollowBrokenStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services.yaml")
	write(t, path, manifestOf("a=x"))
	r := follow(t, path)
	r.wait(t, "errors:1")
	r.logged(t, "")
	write(t, path, manifestOf("a=1"))
	r.wait(t, "a=1")
	r.logged(t, "upsert a, synced")
}

func TestFollowNothing(t *testing.T) {
	err := NewSource(filepath.Join(t.TempDir(), "none")).Run(context.Background(), &recorder{})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

// TestFollowOften rewrites a file all the time: the last state counts, and the source does not starve. A disk may take seconds
// for one writing, so that writings are counted and not time: with their pauses alone they are twenty times settleMost.
func TestFollowOften(t *testing.T) {
	t.Parallel()
	const pause = 10 * time.Millisecond
	path := filepath.Join(t.TempDir(), "services.yaml")
	write(t, path, manifestOf("a=1"))
	r := follow(t, path)
	r.wait(t, "a=1")
	r.takeLog()
	last := 1
	state := func() string { return fmt.Sprintf("a=%d", 1+last%250) } // an address has 255 at most
	for told := 0; told == 0; told = strings.Count(r.takeLog(), "upsert") {
		if last++; last > int(20*settleMost/pause) {
			t.Fatalf("told of no change while the file was written %d times", last)
		}
		write(t, path, manifestOf(state()))
		time.Sleep(pause)
	}
	r.wait(t, state())
}
