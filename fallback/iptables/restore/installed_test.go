//go:build linux

package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The requested back end must be installed, with all its programs. Without a request, the only installed one is chosen.
func TestInstalled(t *testing.T) {
	defer func(was []string) { dirs = was }(dirs)
	for name, tc := range map[string]struct {
		have, lack string // back ends, and programs
		want       Backend
		chosen     Backend // "": both can be used
		err        string
	}{
		"both":                     {have: "nft legacy"},
		"only nf_tables":           {have: "nft", chosen: NFT},
		"only legacy":              {have: "legacy", chosen: Legacy},
		"no save for legacy":       {have: "nft legacy", lack: "iptables-legacy-save", chosen: NFT},
		"none":                     {err: "install the package iptables"},
		"asked for nf_tables":      {have: "nft legacy", want: NFT, chosen: NFT},
		"asked for legacy":         {have: "nft legacy", want: Legacy, chosen: Legacy},
		"nf_tables is not there":   {have: "legacy", want: NFT, err: "back end nf_tables: iptables-nft"},
		"legacy is not there":      {have: "nft", want: Legacy, err: "back end legacy: iptables-legacy"},
		"asked for something else": {have: "nft legacy", want: "ipset", err: "must be nf_tables or legacy"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() + "/"
			dirs = []string{dir}
			for _, b := range strings.Fields(tc.have) {
				for _, program := range []string{"", "-restore", "-save"} {
					if name := "iptables-" + b + program; name != tc.lack {
						must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
					}
				}
			}
			got, err := installed(tc.want)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || got.Backend != tc.chosen {
				t.Errorf("%+v, %v; want %q, and an error with %q", got, err, tc.chosen, tc.err)
			}
		})
	}
}
