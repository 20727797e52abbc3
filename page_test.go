package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// How a page reads: a line ends by column 110, with tabs of four columns, and a function of 40 lines and more has
// paragraphs. What is behind that yet is counted. The numbers only fall: a change that lowers one writes it here.
const (
	maxColumns   = 110
	maxLongLines = 123

	longFunction   = 40 // lines of the body
	maxWallsOfCode = 0
)

func TestPages(t *testing.T) {
	longLines, walls := 0, 0
	for _, file := range productFiles(t) {
		text, err := os.ReadFile(file)
		must(t, err)
		lines := strings.Split(string(text), "\n")
		for _, line := range lines {
			if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > maxColumns {
				longLines++
			}
		}

		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, 0)
		must(t, err)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			first, end := set.Position(f.Body.Lbrace).Line, set.Position(f.Body.Rbrace).Line-1
			if end-first >= longFunction && !hasParagraphs(lines[first:end]) {
				walls++
			}
		}
	}

	if longLines > maxLongLines {
		t.Errorf("%d lines are longer than %d columns; there were %d: break those that the change adds", longLines, maxColumns, maxLongLines)
	}
	if walls > maxWallsOfCode {
		t.Errorf("%d functions of %d lines and more have no blank line; there were %d: give a new one paragraphs", walls, longFunction, maxWallsOfCode)
	}
	t.Logf("%d lines longer than %d columns, %d functions of %d lines and more without a blank line", longLines, maxColumns, walls, longFunction)
}

func hasParagraphs(body []string) bool {
	for _, line := range body {
		if strings.TrimSpace(line) == "" {
			return true
		}
	}
	return false
}

// productFiles returns the Go files that are part of nkp.
func productFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch top, _, _ := strings.Cut(path, string(filepath.Separator)); {
		case err != nil:
			return err
		case d.IsDir() && (top == "test" || top == "hack" || top == "deploy" || top == "docs" || top == "bin" || path != "." && strings.HasPrefix(top, ".")):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	must(t, err)
	return files
}
