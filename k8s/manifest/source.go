package manifest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// How a Source waits.
const (
	settle     = 50 * time.Millisecond // quiet time before the files are read
	settleMost = time.Second           // longest wait after the first change
	pollQuick  = time.Second           // between scans if changes cannot be watched
	pollSlow   = 30 * time.Second      // between scans if they can: a file system may not report every change
)

// Source is a k8s.Source that follows a file or a directory of manifests.
//
// It keeps the last good state: an object that is not valid any more stays as it was, a file that does not
// parse or cannot be read keeps all its objects, and if the path itself is gone for a while nothing changes.
// At the start there is no such state: a path that does not exist is an error, and if there is nothing but
// errors, the source is not synced before they are repaired.
type Source struct {
	path     string
	revision atomic.Value
}

// NewSource returns the source of a path, which is read as Load reads it.
func NewSource(path string) *Source { return &Source{path: path} }

// Revision names what the files held when they were last read, once the sink has the changes; "": it has none
// yet. Of one file it is what sha256sum prints, of a directory the same of its files' lines (sha256sum FILES
// | sha256sum, with their names alone).
func (m *Source) Revision() string {
	r, _ := m.revision.Load().(string)
	return r
}

// Run is part of Source.
func (m *Source) Run(ctx context.Context, sink k8s.Sink) error {
	if _, err := os.Stat(m.path); err != nil {
		return fmt.Errorf("cannot read the manifests: %w", err)
	}
	f := newFollower(m.path, sink)
	f.revised = func(r string) { m.revision.Store(r) }
	if f.watcher != nil {
		defer f.watcher.Close()
	}
	f.look()
	return f.run(ctx)
}

// follower is the state of a running Source.
type follower struct {
	*reader
	sink      k8s.Sink
	published map[k8s.Ref]located
	reported  *k8s.Problems // last report to the sink
	synced    bool
	revised   func(revision string)

	watcher  *fsnotify.Watcher // nil: cannot watch, poll instead
	watchErr error             // why some directory is not watched
}

// newFollower returns a follower that watches for changes, as far as that is possible, and has not looked
// yet.
func newFollower(path string, sink k8s.Sink) *follower {
	f := &follower{
		reader:    newReader(path),
		sink:      sink,
		published: map[k8s.Ref]located{},
		revised:   func(string) {},
	}
	f.watcher, f.watchErr = fsnotify.NewWatcher()
	f.watch()
	return f
}

// run reads the files again whenever they change, until the context ends.
func (f *follower) run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if f.watcher != nil {
		events, errs = f.watcher.Events, f.watcher.Errors
	}
	var first time.Time // of the changes that are not read yet
	timer := time.NewTimer(f.poll())
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events: // an edit may leave size and time of a file as they were
			f.changed[filepath.Clean(e.Name)] = true
		case <-errs: // more events than the kernel could hold
			for path := range f.files {
				f.changed[path] = true
			}
		case <-timer.C:
			f.look()
			first = time.Time{}
			timer.Reset(f.poll())
			continue
		}
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(max(0, min(settle, time.Until(first.Add(settleMost)))))
	}
}

// poll returns how long to wait for an event before scanning anyway.
func (f *follower) poll() time.Duration {
	if f.watchErr != nil || f.missing != nil {
		return pollQuick
	}
	return pollSlow
}

// look reads changed files and reports what differs to the sink.
func (f *follower) look() {
	f.scan()
	if f.watch() { // changes in a directory before its watch began were not reported
		f.scan()
	}
	clear(f.changed)

	objects, problems := f.assemble(f.published)
	if f.watchErr != nil {
		text := fmt.Sprintf("cannot watch for changes, checking every %v instead: %s",
			pollQuick, brief.Line(f.watchErr.Error()))
		problems.Warnings = append(problems.Warnings, k8s.Warning{Where: f.path, Text: text})
	}
	if f.reported == nil || !reflect.DeepEqual(*f.reported, problems) {
		f.reported = &problems
		f.sink.Problems(problems)
	}

	if !f.synced && len(objects) == 0 && len(problems.Errors) > 0 {
		return
	}
	if changes := difference(f.published, objects); len(changes) > 0 {
		f.sink.Apply(changes)
	}
	f.published = objects
	if !f.synced {
		f.synced = true
		f.sink.Synced()
	}
	f.revised(f.revision())
}

// watch watches every directory in which a change can affect the manifests, including replacement of the path
// and files that are symbolic links. It reports whether it added a directory.
func (f *follower) watch() (added bool) {
	if f.watcher == nil {
		return false
	}

	want := map[string]bool{filepath.Dir(filepath.Clean(f.path)): true, filepath.Dir(target(f.path)): true}
	if info, err := os.Stat(f.path); err == nil && info.IsDir() {
		want[filepath.Clean(f.path)] = true
		want[target(f.path)] = true
	}
	for _, file := range f.files {
		want[filepath.Dir(file.target)] = true
	}

	watched := f.watcher.WatchList()
	for _, dir := range watched {
		if !want[dir] {
			_ = f.watcher.Remove(dir) // it may be gone
		}
	}

	f.watchErr = nil
	for dir := range want {
		if slices.Contains(watched, dir) {
			continue
		}
		if err := f.watcher.Add(dir); err == nil {
			added = true
		} else if _, gone := os.Stat(dir); gone == nil {
			f.watchErr = err
		}
	}
	return added
}

// target resolves symbolic links; a path that cannot be resolved is its own target.
func target(path string) string {
	if t, err := filepath.EvalSymlinks(path); err == nil {
		return t
	}
	return filepath.Clean(path)
}
