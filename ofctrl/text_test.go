//go:build linux

package ofctrl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// TestTextForm installs everything over the wire on one bridge and as text with ovs-ofctl on another: the bridges
// then hold the same, for ovs-ofctl and for ReadBack.
func TestTextForm(t *testing.T) {
	t.Parallel()
	wire, text := newBridge(t), newBridge(t)
	want := allShapes(t)
	c := wire.dial(Options{})
	mustCommit(t, c, flow.Diff(flow.NewState(), want))

	d := text.dial(Options{})
	for _, m := range want.SortedMeters() {
		text.ofctl("add-meter", m.String())
	}
	var lines strings.Builder
	for _, g := range want.SortedGroups() {
		fmt.Fprintln(&lines, "group add", g)
	}
	for _, f := range want.SortedFlows() {
		fmt.Fprintln(&lines, "flow add", f)
	}
	file := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	text.ofctl("bundle", file)

	wantSame(t, mustRead(t, d).State, want)
	wantSame(t, mustRead(t, c).State, want)
	out, err := wire.bed.Ofctl("-O", "OpenFlow15", "diff-flows", wire.target().String(), text.target().String())
	if err != nil || out != "" {
		t.Errorf("diff-flows: %v\n%s", err, clip(out))
	}
	for id := range want.Groups {
		if a, b := wire.ofctl("dump-groups", fmt.Sprint(id)), text.ofctl("dump-groups", fmt.Sprint(id)); a != b {
			t.Errorf("dump-groups %d:\n%s\n%s", id, clip(a), clip(b))
		}
	}
}
