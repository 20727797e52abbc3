package config

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Changes are noticed however a file is changed: written to, replaced, or by kubelet's swap of the link ..data.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, mode string) {
		t.Helper()
		must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(os.WriteFile(filepath.Join(dir, name), []byte(nkpHead+"mode: "+mode+"\n"), 0o644))
	}
	write("..v1/config.conf", "auto")
	write("..v2/config.conf", "ovs")
	must(os.Symlink("..v1", filepath.Join(dir, "..data")))
	path := filepath.Join(dir, "config.conf")
	must(os.Symlink("..data/config.conf", path))
	linked := filepath.Join(t.TempDir(), "nkp.yaml") // a link from elsewhere
	must(os.Symlink(path, linked))

	before, err := Load(linked)
	must(err)
	said := make(chan string, 10)
	ctx, cancel := context.WithCancel(context.Background())
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
	expect := func(what, want string) {
		t.Helper()
		select {
		case got := <-said:
			if got != want {
				t.Fatalf("%s: %q, want %q", what, got, want)
			}
		case <-time.After(poll - 2*time.Second): // by an event, not by looking
			t.Fatalf("%s: not noticed", what)
		}
	}
	time.Sleep(3 * settle)
	must(os.Symlink("..v2", filepath.Join(dir, "..data.tmp")))
	must(os.Rename(filepath.Join(dir, "..data.tmp"), filepath.Join(dir, "..data")))
	expect("the link ..data is swapped", "ovs")
	write("..v2/config.conf", "iptables")
	expect("the file is written to", "iptables")
	must(os.Remove(path))
	expect("the file is gone", "error")
	write("new", "windows")
	must(os.Rename(filepath.Join(dir, "new"), path))
	expect("another file takes its place", "windows")
	must(os.Remove(linked))
	expect("the link is gone", "error")
	must(os.WriteFile(linked, []byte(nkpHead+"mode: auto\n"), 0o644))
	expect("it is a file now", "auto")
	must(os.WriteFile(linked, []byte(nkpHead+"mode: auto\n"), 0o644))
	select {
	case got := <-said:
		t.Errorf("nothing has changed, and it says %q", got)
	case <-time.After(5 * settle):
	}
	busy, idle := context.WithCancel(ctx)
	defer idle()
	go func() { // others write in the same directory all the time
		for n := 0; busy.Err() == nil; n++ {
			_ = os.WriteFile(filepath.Join(filepath.Dir(linked), "other"), []byte{byte(n)}, 0o644)
			time.Sleep(settle / 10)
		}
	}()
	must(os.WriteFile(linked, []byte(nkpHead+"mode: ovs\n"), 0o644))
	expect("the directory is busy", "ovs")
	cancel()
	<-done
}
