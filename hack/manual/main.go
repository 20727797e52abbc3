package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra/doc"

	"github.com/nkp-proxy/nkp/internal/command"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

// write writes dir/man/nkp*.8 and dir/completions/nkp.{bash,zsh,fish}. The date in the pages is SOURCE_DATE_EPOCH's if it is set.
func write(dir string) error {
	root := command.Commands()[0].Root()
	man, completions := filepath.Join(dir, "man"), filepath.Join(dir, "completions")
	for _, d := range []string{man, completions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := root.GenBashCompletionFileV2(filepath.Join(completions, "nkp.bash"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(completions, "nkp.zsh")); err != nil {
		return err
	}
	if err := root.GenFishCompletionFile(filepath.Join(completions, "nkp.fish"), true); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	all := append(root.Commands(), root)
	for _, cmd := range all {
		cmd.Long = lists(cmd.Long)
	}
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "nkp", Manual: "nkp"}, man); err != nil {
		return err
	}
	for _, cmd := range all {
		if cmd.IsAvailableCommand() || cmd == root { // as GenManTree does
			if err := addSections(cmd, man); err != nil {
				return err
			}
		}
	}
	return nil
}

// lists returns a text whose indented lines, which are lists, are preformatted text in Markdown.
func lists(text string) string {
	var b strings.Builder
	before := false
	for line := range strings.Lines(text) {
		in := strings.HasPrefix(line, "  ")
		if in != before {
			b.WriteString("\n")
		}
		if before = in; in {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}
