package main

import (
	"bytes"
	"os"
	"testing"
)

// The picture in docs shows the pipeline as it is.
func TestPictureIsCurrent(t *testing.T) {
	want, err := draw()
	if err != nil {
		t.Fatal(err)
	}
	dot, err := os.ReadFile("../../docs/pipeline.dot")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dot, want) {
		t.Error("docs/pipeline.dot shows another pipeline: run \"make picture\"")
	}
	svg, err := os.ReadFile("../../docs/pipeline.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(svg, []byte(stamp(dot))) {
		t.Error("docs/pipeline.svg was not made from docs/pipeline.dot: run \"make picture\"")
	}
}
