package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A viewer without the typeface has others of the same widths to take.
func TestPlotNamesFontsOfTheSameWidths(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.svg")
	f := Figure{Title: "cost", Unit: "ratio", Linear: true, Line: 1, Curves: []Curve{{"nkp", []Point{{10, 0.98}, {10000, 1.01}}}}}
	if err := f.WriteSVG(file); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	named := strings.Count(string(svg), "font-family:")
	if n := strings.Count(string(svg), "font-family:'Liberation Sans',Arial,Helvetica,sans-serif"); n == 0 || n != named {
		t.Errorf("%d of %d texts name other fonts", n, named)
	}
	if !strings.Contains(string(svg), ">10000<") {
		t.Error("the last size has no label")
	}
}
