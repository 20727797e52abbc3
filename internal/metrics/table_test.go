package metrics

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// docs/metrics.md says what is served.
func TestTable(t *testing.T) {
	const file = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(file, []byte(Table()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != Table() {
		t.Errorf("%s is not current: go test ./internal/metrics -run TestTable -update", file)
	}
}
