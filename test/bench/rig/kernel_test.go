//go:build linux

package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The memory of a map grows with its elements and is found again when they are deleted. An element of 200,000 takes about 110
// bytes (Linux 6.18): its slab object of 96, and its share of the hash table's buckets. Other work of the machine counts too, so the
// bounds are wide.
func TestTableMemory(t *testing.T) {
	testbed.Linux.Require(t)
	const elements = 200_000
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
		for range 3 { // other work may free as much meanwhile
			prepare()
			if got := measure(); low < got && got < high {
				return
			}
		}
		t.Errorf("want %g to %g MB", low, high)
	}
	within(15, 40, func() {
		if out, err := n.Node.Exec(t.Context(), "nft", "-f", file); err != nil {
			t.Fatal(out, err)
		}
	})
	within(-4, 4, func() {}) // there is nothing to delete any more
}
