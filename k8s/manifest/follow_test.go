package manifest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
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
		case k8s.Renew:
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
	runs(t, func(ctx context.Context) error { return NewSource(path).Run(ctx, r) })
	return r
}

// runs calls run until the test ends, or stop is called.
func runs(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// wait waits until the state is the wanted one.
func (r *recorder) wait(t *testing.T, want string) {
	t.Helper()
	wait.NoError(t, "the state", func() error {
		if got := r.state(); got != want {
			r.mu.Lock()
			defer r.mu.Unlock()
			return fmt.Errorf("it is %q, want %q; problems: %v", got, want, r.problems)
		}
		return nil
	})
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

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// put writes a file at once: whoever reads it finds the old text or the new, however long a writer is kept from going on.
func put(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".tmp", text)
	must(t, os.Rename(path+".tmp", path))
}

// edit overwrites a file in place with a text of the same length, in one call.
func edit(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
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

	edit(t, a, manifestOf("a1=1", "a2=3")) // edit in place: only what differs is told
	r.wait(t, "a1=1 a2=3 b1=11")
	r.logged(t, "upsert a2")

	put(t, a, manifestOf("a1=4", "a2=3")) // rename over
	r.wait(t, "a1=4 a2=3 b1=11")
	r.logged(t, "upsert a1")

	put(t, a, manifestOf("a0=9", "a1=4", "a2=3")) // one more before the others: they move
	r.wait(t, "a0=9 a1=4 a2=3 b1=11")
	r.logged(t, "renew a1, renew a2, upsert a0")

	put(t, a, manifestOf("a0=9", "a1=4", "a2=x")) // not valid: it stays, the rest is applied
	r.wait(t, "a0=9 a1=4 a2=3 b1=11 errors:1")
	put(t, a, manifestOf("a0=8", "a1=4", "a2=x"))
	r.wait(t, "a0=8 a1=4 a2=3 b1=11 errors:1")
	put(t, a, manifestOf("a0=8", "a2=x")) // what vanished goes, what is broken stays
	r.wait(t, "a0=8 a2=3 b1=11 errors:1")
	put(t, a, manifestOf("a0=8", "a2=5"))
	r.wait(t, "a0=8 a2=5 b1=11")
	r.takeLog()

	put(t, a, manifestOf("a0=7")+"---\n{") // a document that does not parse: nothing of the file goes
	r.wait(t, "a0=7 a2=5 b1=11 errors:1")
	put(t, a, manifestOf("a0=7", "b1=12")) // twice: what was in force stays
	r.wait(t, "a0=7 b1=11 errors:1")
	must(t, os.Remove(b))
	r.wait(t, "a0=7 b1=12")
	put(t, b, "\x00")
	r.wait(t, "a0=7 b1=12 errors:1")
	must(t, os.Remove(b))
	r.wait(t, "a0=7 b1=12")
	r.takeLog()

	must(t, os.Rename(dir, dir+".away")) // the directory is gone for a while
	r.wait(t, "a0=7 b1=12 errors:1")
	must(t, os.Mkdir(dir, 0o755))
	r.wait(t, "warnings:1") // an empty directory is no mistake of ours
	r.logged(t, "delete a0, delete b1")
	put(t, a, manifestOf("a0=1"))
	r.wait(t, "a0=1")
}

// A change that leaves size and time as they are is seen if it follows another one closely.
func TestFollowQuickEdits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "services.yaml")
	write(t, path, manifestOf("a=1"))
	at := time.Now()
	must(t, os.Chtimes(path, at, at))
	r := &recorder{objects: map[k8s.Ref]k8s.Change{}}
	f := newFollower(path, r)
	defer f.watcher.Close()
	f.look()
	edit(t, path, manifestOf("a=2"))
	must(t, os.Chtimes(path, at, at))
	f.look()
	if got := r.state(); got != "a=2" {
		t.Errorf("after the second edit: %s", got)
	}
}

// TestFollowSameTime edits a file in place, without a change of its size or its time, as tools do that set a
// time of their own.
func TestFollowSameTime(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	at := time.Now().Add(-time.Hour)
	set := func(path, text string) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		must(t, err)
		_, err = file.WriteString(text)
		must(t, err)
		must(t, os.Chtimes(path, at, at))
		must(t, file.Close())
	}
	path, linked := filepath.Join(dir, "a.yaml"), filepath.Join(elsewhere, "b.yaml")
	set(path, manifestOf("a=1"))
	set(linked, manifestOf("b=1"))
	must(t, os.Symlink(linked, filepath.Join(dir, "b.yaml")))
	r := follow(t, dir)
	r.wait(t, "a=1 b=1")
	set(path, manifestOf("a=2"))
	r.wait(t, "a=2 b=1")
	set(linked, manifestOf("b=2"))
	r.wait(t, "a=2 b=2")
}

// TestFollowTwoDefinitions keeps the state that was in force before an object was defined twice, also if the
// file is broken then.
func TestFollowTwoDefinitions(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services.yaml")
	put(t, path, manifestOf("a=1"))
	r := follow(t, path)
	r.wait(t, "a=1")
	put(t, path, manifestOf("a=2", "a=3"))
	r.wait(t, "a=1 errors:1")
	put(t, path, manifestOf("b=1")+"---\n{")
	r.wait(t, "a=1 b=1 errors:1")
	put(t, path, manifestOf("a=2"))
	r.wait(t, "a=2")
}

func TestFollowFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services.yaml")
	put(t, path, manifestOf("a=1"))
	r := follow(t, path)
	r.wait(t, "a=1")
	must(t, os.Remove(path))
	r.wait(t, "a=1 errors:1")
	put(t, path, manifestOf("a=2"))
	r.wait(t, "a=2")
	r.logged(t, "upsert a, synced, upsert a")
	put(t, path, manifestOf("a=2")+"# a comment\n") // another text, the same object
	put(t, path+".yaml", manifestOf("other=1"))     // another file beside it
	put(t, path, manifestOf("a=2", "b=1"))
	r.wait(t, "a=2 b=1")
	r.logged(t, "upsert b")
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
	put(t, filepath.Join(elsewhere, "x.yaml"), manifestOf("a=2"))
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
	put(t, path, manifestOf("a=1"))
	r.wait(t, "a=1")
	r.logged(t, "upsert a, synced")
}

func TestFollowNothing(t *testing.T) {
	err := NewSource(filepath.Join(t.TempDir(), "none")).Run(context.Background(), &recorder{})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

// TestFollowOften rewrites a file all the time: the last state counts, and the source does not starve: it reads the file once every
// settleMost. A change alone is read after settle.
func TestFollowOften(t *testing.T) {
	path := filepath.Join(t.TempDir(), "services.yaml")
	write(t, path, manifestOf("a=0"))
	r := &recorder{objects: map[k8s.Ref]k8s.Change{}}
	f := newFollower(path, r)
	f.look()
	r.takeLog()
	defer f.watcher.Close()
	synctest.Test(t, func(t *testing.T) {
		f.watcher.Events, f.watcher.Errors = make(chan fsnotify.Event), make(chan error) // instead of the kernel's
		stop := runs(t, f.run)
		change := func(text string) {
			put(t, path, text)
			f.watcher.Events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
		}
		pass := func(d time.Duration, changes int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := strings.Count(r.takeLog(), "upsert"); n != changes {
				t.Errorf("%d changes are told, want %d", n, changes)
			}
		}
		change(manifestOf("a=1"))
		pass(settle-1, 0)
		pass(1, 1)
		const pause, times = 10 * time.Millisecond, 4
		for i := range int(times * settleMost / pause) {
			change(manifestOf(fmt.Sprint("a=", 2+i%250))) // an address has 255 at most
			time.Sleep(pause)
		}
		pass(settle, times)
		if got := r.state(); got != fmt.Sprint("a=", 2+(int(times*settleMost/pause)-1)%250) {
			t.Errorf("in the end it is %s", got)
		}

		change(manifestOf("a=1") + "# a comment\n")
		pass(settle, 1)
		change(manifestOf("a=1") + "# another\n") // another text, the same object
		pass(settleMost, 0)
		stop()
	})
}

// The revision is what sha256sum prints of the file, or of the list that it prints of a directory's files. It is there once the sink has
// the changes.
func TestRevision(t *testing.T) {
	dir := t.TempDir()
	const a, b = "a.yaml", "b.json"
	texts := map[string]string{a: "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", b: `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}`}
	list := ""
	for _, name := range []string{a, b} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(texts[name]), 0o600); err != nil {
			t.Fatal(err)
		}
		list += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(texts[name])), name)
	}
	for path, want := range map[string]string{dir: list, filepath.Join(dir, a): texts[a]} {
		source, sink := NewSource(path), &recorder{objects: map[k8s.Ref]k8s.Change{}}
		if r := source.Revision(); r != "" {
			t.Errorf("before the first look: %s", r)
		}
		f := newFollower(path, sink)
		applied := 0
		f.revised = func(r string) {
			applied = len(sink.log)
			source.revision.Store(r)
		}
		f.look()
		if r := source.Revision(); r != fmt.Sprintf("%x", sha256.Sum256([]byte(want))) || applied == 0 {
			t.Errorf("%s: revision %s, after %d changes", path, r, applied)
		}
		if f.watcher != nil {
			f.watcher.Close()
		}
	}
}
