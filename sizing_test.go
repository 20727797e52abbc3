package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Every memory limit of nkp's containers has room for --cost-limit-node at the measured bytes of a unit of cost (docs/operate/sizing.md), and not for twice as
// much: it follows when the default of the flag, or the measurement, changes.
func TestMemoryLimitsFollowFromTheBudget(t *testing.T) {
	page, err := os.ReadFile("docs/operate/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`\| nkp \| 0\.3 to ([\d.]+) kB \|[^|]*memory limit of the DaemonSet is 2 GiB`).FindSubmatch(page)
	if m == nil || !strings.Contains(string(page), "default of 4,000,000") || k8s.DefaultLimits.Node != 4_000_000 {
		t.Fatalf("docs/operate/sizing.md does not size nkp by --cost-limit-node, %d", k8s.DefaultLimits.Node)
	}
	unit, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	need := int(unit * 1000 * float64(k8s.DefaultLimits.Node))

	limit := regexp.MustCompile(`limits[^\n]*memory"?:? "?(\d+)(\w+)`)
	found := 0
	err = filepath.WalkDir("deploy", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range limit.FindAllStringSubmatch(string(text), -1) {
			found++
			n, _ := strconv.Atoi(m[1])
			if has := n * map[string]int{"Mi": 1 << 20, "Gi": 1 << 30}[m[2]]; has < need || has > 2*need {
				t.Errorf("%s: a memory limit of %s%s; --cost-limit-node needs %d bytes", path, m[1], m[2], need)
			}
		}
		return err
	})
	if err != nil || found < 2 {
		t.Errorf("%d memory limits found, want those of the DaemonSet and the chart: %v", found, err)
	}
}
