package localhost

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
)

// The limits follow the process's limit of open files.
func TestOpenFiles(t *testing.T) {
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: was.Max}))
	if f := New(Options{Log: slog.New(slog.DiscardHandler)}).Figures(); f.Listeners+2*f.Connections > 512 {
		t.Errorf("%+v of 1024 descriptors", f.Limits)
	}
}
