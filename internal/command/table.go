package command

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// table is a table whose rows can be followed by lines of text.
type table struct {
	rows    [][]string // the first has the columns' names
	details [][]string // what follows each row
}

// leftOut are the columns that a narrow terminal does without, the first first.
var leftOut = []string{"BYTES OUT", "BYTES IN", "PKTS OUT", "PKTS IN",
	"CONNECTIONS", "FRONTENDS", "FAMILY", "BYTES/S OUT", "BYTES/S IN"}

// fit leaves out columns until the table fits in width.
func (t *table) fit(width int) {
	for _, head := range leftOut {
		total := -columnGap
		for column := range t.rows[0] {
			total += columnGap + len(slices.MaxFunc(t.rows, func(a, b []string) int {
				return len(a[column]) - len(b[column])
			})[column])
		}
		column := slices.Index(t.rows[0], head)
		if total <= width {
			return
		}
		for i := range t.rows {
			if column >= 0 {
				t.rows[i] = slices.Delete(t.rows[i], column, column+1)
			}
		}
	}
}

// columnGap is the number of spaces between columns.
const columnGap = 2

// flush writes the table and inserts the details between its lines afterwards, so that they do not widen the
// columns.
func (t *table) flush(out io.Writer, width int) error {
	if width > 0 {
		t.fit(width)
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, columnGap, ' ', 0)
	for _, cells := range t.rows {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush() // a strings.Builder does not fail

	b := bufio.NewWriter(out)
	i := 0
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(b, strings.TrimRight(line, " \n"))
		for _, d := range t.details[i] {
			fmt.Fprintf(b, "    %s\n", d)
		}
		i++
	}
	return b.Flush()
}

// row writes cells as a line of the table.
func (t *table) row(cells ...string) {
	t.rows = append(t.rows, cells)
	t.details = append(t.details, nil)
}

// below records a line that belongs to the last row. It joins the lines of a text that has several.
func (t *table) below(text string) {
	last := &t.details[len(t.details)-1]
	*last = append(*last, oneLine(text))
}
