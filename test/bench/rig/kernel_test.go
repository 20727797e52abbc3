//go:build linux

package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// The memory of a map grows with its elements and is found again when they are deleted. An element of 500,000 takes about 110
// bytes (Linux 6.18): its slab object of 96, and its share of the hash table's buckets. Other work of the machine counts too, so
// the bounds are wide, and a measurement outside is repeated.
func TestTableMemory(t *testing.T) {
	testbed.Linux.Require(t)
	const elements = 500_000
	n := &Node{Bed: testbed.Start(t, testbed.Options{Plane: testbed.Linux}), Kind: NFTables, dir: t.TempDir()}
	var b strings.Builder
	b.WriteString("table ip t {\nmap endpoints {\ntype ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service\nelements = {\n")
	for i := range elements {
		fmt.Fprintf(&b, "10.%d.%d.%d . tcp . 80 . 1 : 10.0.0.1 . 80,\n", i>>16, i>>8&255, i&255)
	}
	b.WriteString("}\n}\n}\n")
	file := filepath.Join(n.dir, "ruleset")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	measure := func() float64 {
		got, err := n.TableMemory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.1f MB", got)
		return got
	}
	within := func(low, high float64, prepare func()) {
		t.Helper()
		wait.NoError(t, "a measurement that no other work of the machine disturbs", func() error {
			prepare()
			if got := measure(); got <= low || got >= high {
				return fmt.Errorf("%g MB, want %g to %g", got, low, high)
			}
			return nil
		})
	}
	within(35, 110, func() {
		if out, err := n.Node.Exec(t.Context(), "nft", "-f", file); err != nil {
			t.Fatal(out, err)
		}
	})
	within(-20, 20, func() {}) // there is nothing to delete any more
}
