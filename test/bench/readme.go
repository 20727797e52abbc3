//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// writeREADME replaces the numbers in a README, which stand between comments, by those of the run.
func writeREADME(r *Results, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s := string(text)
	for block, content := range map[string]string{"headline": headline(r), "table": readmeTable(r)} {
		begin, end := "<!-- make bench writes this: "+block+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(s, begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			return fmt.Errorf("%s has no block %q that ends with %q", file, strings.TrimSpace(begin), end)
		}
		s = before + begin + content + end + after
	}
	return os.WriteFile(file, []byte(s), 0o644)
}

// headline compares nkp in Open vSwitch with kube-proxy's nftables mode.
func headline(r *Results) string {
	nkp, kube := last(r.control(rig.NKP)), last(r.control(rig.KubeNft))

	seconds := func(v float64) string { return fmt.Sprintf("%.2g s", v) }
	change := func(ms float64) string {
		if ms < 1000 {
			return fmt.Sprintf("%.0f ms", ms)
		}
		return seconds(ms / 1000)
	}

	return fmt.Sprintf("At %s Services an endpoint change takes effect in %s instead of %s, startup takes %s "+
		"instead of %s, and memory is %.0f MB instead of %.0f MB (kube-proxy %s, nftables mode).\n",
		thousands(nkp.Services), change(changeCost(nkp)), change(changeCost(kube)),
		seconds(startCost(nkp)), seconds(startCost(kube)),
		memoryCost(nkp), memoryCost(kube), kubeVersion(r))
}

func kubeVersion(r *Results) string { return strings.TrimPrefix(r.Kube, "v") }

// thousands writes a number below a million with a comma.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// readmeTable has a column for each mode of nkp, and one for kube-proxy's nftables mode. A line below has the
// numbers of its iptables mode.
func readmeTable(r *Results) string {
	nkp := last(r.control(rig.NKP))
	columns := []struct {
		kind rig.Kind
		name string
	}{
		{rig.NKP, "nkp, Open vSwitch"},
		{rig.NFTables, "nkp, nftables"},
		{rig.KubeNft, "kube-proxy " + kubeVersion(r) + ", nftables"},
	}
	rows := []struct {
		what  string
		value func(Control) string
	}{
		{
			"time from an endpoint change until a new connection reaches the new pod, p50",
			func(c Control) string { return short(quantile(c.Change, 50)) },
		},
		{"time from start until all Services are reachable", func(c Control) string { return short(c.Start()) }},
		{"resident memory", func(c Control) string { return fmt.Sprintf("%.0f MB", c.SettledMemory) }},
	}

	t := report.Table{Header: []string{
		fmt.Sprintf("%s Services × %d endpoints, `make bench`", thousands(nkp.Services), nkp.Endpoints),
	}}
	for _, c := range columns {
		t.Header = append(t.Header, c.name)
	}
	var iptables []string
	for _, row := range rows {
		cells := []string{row.what}
		for _, c := range columns {
			cells = append(cells, row.value(last(r.control(c.kind))))
		}
		t.Add(cells...)
		iptables = append(iptables, row.value(last(r.control(rig.KubeLegacy))))
	}

	return report.Markdown(t) + "\nkube-proxy's iptables mode in the same run: " + strings.Join(iptables, ", ") + ".\n"
}
