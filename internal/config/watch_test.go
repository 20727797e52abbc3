package config

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nkp-proxy/nkp/test/wait"
)

// Changes are noticed however a file is changed: written to, replaced, or by kubelet's swap of the link ..data; each by an event, so
// that it does not wait for the next look. Nothing is said of a file that is written as it was.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	text := func(mode string) []byte { return []byte(nkpHead + "mode: " + mode + "\n") }
	put := func(path, mode string) { // at once: whoever reads it finds the old text or the new
		t.Helper()
		must(t, os.WriteFile(path+".tmp", text(mode), 0o644))
		must(t, os.Rename(path+".tmp", path))
	}
	for version, mode := range map[string]string{"..v1": "auto", "..v2": "ovs"} {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		put(filepath.Join(dir, version, "config.conf"), mode)
	}
	must(t, os.Symlink("..v1", filepath.Join(dir, "..data")))
	path := filepath.Join(dir, "config.conf")
	must(t, os.Symlink("..data/config.conf", path))
	linked := filepath.Join(t.TempDir(), "nkp.yaml") // a link from elsewhere
	must(t, os.Symlink(path, linked))

	// beside watches what Watch does, and only counts.
	beside, err := fsnotify.NewWatcher()
	must(t, err)
	var events atomic.Int64
	go func() { // ends with beside
		for range beside.Events {
			events.Add(1)
		}
	}()
	defer beside.Close()

	before, err := Load(linked)
	must(t, err)
	said := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, linked, before, func(f *File, err error) {
			if err != nil {
				said <- "error"
				return
			}
			said <- f.Nkp.Mode
		})
	}()
	expect := func(what, want string, change func()) {
		t.Helper()
		watchDirs(beside, linked)
		seen := events.Load()
		change()
		wait.For(t, "an event when "+what, func() bool { return events.Load() > seen })
		if got := wait.Receive(t, what, said); got != want {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	expect("the link ..data is swapped", "ovs", func() {
		must(t, os.Symlink("..v2", filepath.Join(dir, "..data.tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data.tmp"), filepath.Join(dir, "..data")))
	})
	expect("the file is written to", "iptables", func() {
		f, err := os.OpenFile(filepath.Join(dir, "..v2", "config.conf"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.Write(text("iptables")) // longer than it was
		must(t, err)
		must(t, f.Close())
	})
	expect("the file is gone", "error", func() { must(t, os.Remove(path)) })
	expect("another file takes its place", "windows", func() { put(path, "windows") })
	expect("the link is gone", "error", func() { must(t, os.Remove(linked)) })
	expect("it is a file now", "auto", func() { put(linked, "auto") })

	put(linked, "auto") // as it is
	busy, idle := context.WithCancel(ctx)
	defer idle()
	var writes atomic.Int64
	go func() { // others write in the same directory all the time
		for busy.Err() == nil {
			_ = os.WriteFile(filepath.Join(filepath.Dir(linked), "other"), []byte{byte(writes.Add(1))}, 0o644)
			time.Sleep(settle / 10)
		}
	}()
	wait.For(t, "writes for longer than Watch waits for their end", func() bool { return writes.Load() > int64(2*settleMost/(settle/10)) })
	expect("the directory is busy", "ovs", func() { put(linked, "ovs") })
	cancel()
	<-done
}
