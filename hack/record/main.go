// Command record runs a program in a terminal and writes what it printed as an animated SVG:
//
//	record -o docs/demo.svg make demo
//
// The animation shows a line at a time and pauses before each heading, since the program itself is faster than a reader.
// It needs util-linux's script.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: record -o FILE.svg COMMAND...")
		os.Exit(2)
	}
	if err := record(*out, strings.Join(flag.Args(), " ")); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(file, command string) error {
	var printed bytes.Buffer
	// A terminal of its own makes the program use colours and UTF-8.
	cmd := exec.Command("script", "--quiet", "--return", "--command", command, "/dev/null")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	cmd.Stdout, cmd.Stderr = &printed, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, printed.Bytes())
	}
	return os.WriteFile(file, draw(command, lines(printed.String())), 0o644)
}
