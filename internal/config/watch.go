package config

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How Watch detects changes.
const (
	settle     = 200 * time.Millisecond // a file may be written in pieces
	settleMost = time.Second            // others may write in the same directory all the time
	// where changes are not reported: a network file system, too many watches
	poll = 10 * time.Second
)

// Watch calls changed, on its own goroutine, each time the file's content changes, or it becomes readable or
// unreadable, until the context ends. It follows files that are replaced, and symbolic links anywhere in the
// path, because kubelet replaces the files of a ConfigMap by swapping the link ..data. before is the file as
// Load read it.
func Watch(ctx context.Context, path string, before *File, changed func(*File, error)) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		events, errs = w.Events, w.Errors
		watchDirs(w, path)
	}

	var first time.Time // of the events since the last check
	last, lastErr := before.raw, error(nil)
	timer := time.NewTimer(0) // what changed since it was read
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if first.IsZero() {
				first = time.Now()
			}
			timer.Reset(max(0, min(settle, time.Until(first.Add(settleMost)))))
			continue
		case <-errs: // more events than the kernel could hold
			timer.Reset(settle)
			continue
		case <-timer.C:
			first = time.Time{}
			timer.Reset(poll)
		}

		if w != nil {
			watchDirs(w, path)
		}

		data, err := read(path)
		if (err == nil) == (lastErr == nil) && bytes.Equal(data, last) {
			continue
		}

		last, lastErr = data, err
		if err != nil {
			changed(nil, err)
			continue
		}
		changed(Parse(path, data))
	}
}

// watchDirs watches the directories of the file, and of every link on the way to it. Watching one twice is no
// error. One that cannot be watched is still polled.
func watchDirs(w *fsnotify.Watcher, path string) {
	for range 16 { // links may form a ring
		_ = w.Add(filepath.Dir(path))
		// A directory on the way may be a link, too: watching its parent reports when it is swapped.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			_ = w.Add(dir)
		}
		to, err := os.Readlink(path)
		if err != nil {
			return
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		_ = w.Add(filepath.Dir(filepath.Dir(to)))
		path = to
	}
}
