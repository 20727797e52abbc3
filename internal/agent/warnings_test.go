package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/bound"
)

// A change logs 20 new warnings at most, and counts the others; the next change logs none of them again.
func TestNewWarningsAreBounded(t *testing.T) {
	bound.Check(t, "warnings", 20, func(n int) []string {
		var out bytes.Buffer
		a := &Agent{log: slog.New(slog.NewTextHandler(&out, nil)), warned: map[k8s.Warning]bool{}}
		list := make([]k8s.Warning, n)
		for i := range list {
			list[i] = k8s.Warning{Object: "a file", Text: strings.Repeat("x", i+1)}
		}
		a.reportWarnings(list)
		a.reportWarnings(list)
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	})
}
