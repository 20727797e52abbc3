// Picture draws the pipeline from what the compiler makes of one Service of every shape, so that the drawing cannot say
// anything else than the switch: docs/pipeline.dot, and from it docs/pipeline.svg by Graphviz. Run it by "make picture".
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	if err := run("docs"); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	dot, err := draw()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pipeline.dot"), dot, 0o644); err != nil {
		return err
	}
	cmd := exec.Command("dot", "-Tsvg")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(dot), os.Stderr
	svg, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("dot, of Debian's package graphviz: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "pipeline.svg"), append(svg, stamp(dot)...), 0o644)
}

// stamp ties a drawing to its source.
func stamp(dot []byte) string { return fmt.Sprintf("<!-- pipeline.dot %x -->\n", sha256.Sum256(dot)) }
