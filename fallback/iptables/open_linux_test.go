package iptables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/k8s"
)

// A family for which the kernel has no tables is left out, and is an error if it was asked for. No family at all is an error, because
// nothing would be served.
func TestOpenWithoutTables(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir) // instead of the machine's iptables
	for _, tc := range []struct {
		tables string // programs that find their tables
		asked  []k8s.Family
		opened int // families; 0: an error
	}{
		{"iptables ip6tables", nil, 2},
		{"iptables", nil, 1},
		{"ip6tables", nil, 1},
		{"", nil, 0},
		{"iptables ip6tables", []k8s.Family{k8s.IPv4, k8s.IPv6}, 2},
		{"iptables", []k8s.Family{k8s.IPv4, k8s.IPv6}, 0},
		{"iptables", []k8s.Family{k8s.IPv4}, 1},
		{"ip6tables", []k8s.Family{k8s.IPv4}, 0},
	} {
		for _, program := range []string{"iptables", "ip6tables"} {
			script := "#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n"
			if !strings.Contains(" "+tc.tables+" ", " "+program+" ") {
				script += "[ \"$1\" = --version ] || { echo 'Table does not exist' >&2; exit 3; }\n"
			}
			for _, kind := range []string{"-nft", "-nft-restore", "-nft-save"} {
				must(t, os.WriteFile(filepath.Join(dir, program+kind), []byte(script), 0o755))
			}
		}
		o := Options{Options: fallback.DefaultOptions(), Backend: string(restore.NFT)}
		o.Families = tc.asked
		p, err := New(o)
		must(t, err)
		workers, err := kernel{o}.tryOpen(t.Context(), p)
		if len(workers) != tc.opened || (err == nil) != (tc.opened > 0) {
			t.Errorf("tables of %q, asked for %v: %d families opened, %v; want %d", tc.tables, tc.asked, len(workers), err, tc.opened)
		}
	}
}
