package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Manifests that are small to write and large to read, or deep: each is an error or harmless, in bounded time and memory, and
// the good Service beside it is served.
func TestBombs(t *testing.T) {
	const good = "apiVersion: v1\nkind: Service\nmetadata: {name: good, namespace: default}\nspec: {clusterIP: 40.0.0.1, ports: [{port: 80}]}\n"
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	for name, bomb := range map[string]string{
		"a billion laughs":         "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\n" + laughs,
		"laughs by merging":        "a: &a {x: 1}\nb: &b {<<: [*a, *a, *a, *a], y: *a}\nkind: Service\nspec: {<<: [*b, *b, *b, *b]}\n",
		"an alias to itself":       "kind: Service\na: &a [*a]\n",
		"deep flow sequences":      "kind: Service\na: " + strings.Repeat("[", 200_000),
		"deep flow mappings":       "kind: Service\na: " + strings.Repeat("{a: ", 200_000),
		"deep block mappings":      deepBlocks(3000),
		"deep JSON":                `{"kind": "List", "items": [` + strings.Repeat(`{"kind":"List","items":[`, 50_000),
		"closed deep JSON":         strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000),
		"a long scalar":            "kind: " + strings.Repeat("x", 8<<20),
		"a long key":               strings.Repeat("k", 2<<20) + ": 1\nkind: Service\n",
		"a long number":            "kind: Service\nspec: {ports: [{port: " + strings.Repeat("9", 1<<20) + "}]}\n",
		"an exponent":              "kind: Service\nspec: {ports: [{port: 1e999999999}]}\n",
		"many documents":           strings.Repeat("---\n", 500_000),
		"many anchors":             "kind: Service\na: [" + strings.Repeat("&a x, ", 200_000) + "]\n",
		"many errors":              strings.Repeat("---\nkind: Service\napiVersion: v1\nspec: 7\n", 20_000),
		"many tags and directives": strings.Repeat("%TAG ! tag:x,2000:\n", 50_000) + "---\n!!binary x\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"bomb.yaml": bomb, "good.yaml": good} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			m := loaded(t, dir)
			runtime.ReadMemStats(&after)
			if sys := after.HeapSys - before.HeapSys; int64(sys) > 1<<30 {
				t.Errorf("the heap grew by %d MiB", sys>>20)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<30 { // twice what the worst takes
				t.Errorf("%d MiB were allocated", n>>20)
			}
			served := false
			for _, c := range m.Objects {
				served = served || c.Ref.Name == "good"
			}
			if !served {
				t.Error("the good Service beside it is not served")
			}
			for _, w := range append(m.Errors, m.Warnings...) {
				if len(w.String()) > 1200 {
					t.Errorf("a message of %d bytes: %.200s", len(w.String()), w)
				}
			}
			t.Logf("%d errors", len(m.Errors))
		})
	}
}

func deepBlocks(n int) string {
	var b strings.Builder
	b.WriteString("kind: Service\n")
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}
