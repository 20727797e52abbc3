package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The reserve of the start takes no memory, and nobody's GOGC is overruled. Nothing may have been freed before: Go clears memory that
// was used before, and thereby writes to it. So the test runs in a process of its own, without garbage collection until then.
func TestReserveIsNotResident(t *testing.T) {
	const fresh = "NKP_TEST_FRESH_PROCESS"
	if os.Getenv(fresh) == "" {
		again := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		again.Env = append(os.Environ(), fresh+"=1", "GOGC=off")
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	t.Cleanup(func() { reserve = nil; debug.SetGCPercent(100) })
	t.Setenv("GOGC", "70")
	if SaveMemory(); reserve != nil {
		t.Error("there is a reserve although GOGC is set")
	}
	t.Setenv("GOGC", "")
	before := testbed.Memory(t, os.Getpid(), "VmRSS")
	if SaveMemory(); len(reserve) != startReserve {
		t.Fatalf("the reserve is of %d bytes", len(reserve))
	}
	if grown := testbed.Memory(t, os.Getpid(), "VmRSS") - before; grown > startReserve/8>>10 {
		t.Errorf("a reserve of %d MiB takes %d MiB of memory", startReserve>>20, grown>>10)
	}
	if settleMemory(); reserve != nil {
		t.Error("the reserve stays")
	}
}

// The limit of the container is read of either version of cgroups; "max", the number of none, and no file at all are no limit.
func TestContainerMemory(t *testing.T) {
	for _, tc := range []struct {
		file, text string
		want       int64
	}{
		{"memory.max", "2147483648\n", 2 << 30},
		{"memory.max", "max\n", 0},
		{"memory/memory.limit_in_bytes", "536870912\n", 512 << 20},
		{"memory/memory.limit_in_bytes", "9223372036854771712\n", 0},
		{"other", "1", 0},
	} {
		root := t.TempDir()
		file := filepath.Join(root, tc.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(tc.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := containerMemory(root); got != tc.want {
			t.Errorf("%s with %q: %d, want %d", tc.file, tc.text, got, tc.want)
		}
	}
}

// The garbage collector counts the reserve, which takes no memory: a small container does not collect garbage all the time of its start.
func TestMemoryLimitIsBesideTheReserve(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { reserve = nil; debug.SetMemoryLimit(before) })
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "memory.max"), []byte("100000000"), 0o644); err != nil {
		t.Fatal(err)
	}

	reserve = make([]byte, startReserve)
	limitMemory(root)
	if got := debug.SetMemoryLimit(-1); got != 90_000_000+startReserve {
		t.Errorf("at the start: %d", got)
	}
	reserve = nil
	limitMemory(root)
	if got := debug.SetMemoryLimit(-1); got != 90_000_000 {
		t.Errorf("after it: %d", got)
	}
}
