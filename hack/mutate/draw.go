package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A mutation replaces the bytes from..to of a file, all in one line.
type mutation struct {
	pkg, file string // import path; absolute path
	at        string // file and line, below the current directory
	from, to  int
	was, text string
	rest      string // of the line
}

func (m mutation) String() string {
	return fmt.Sprintf("%s: %s -> %s, before %q", m.at, cmp.Or(m.was, "nothing"), cmp.Or(m.text, "nothing"), m.rest)
}

// candidates returns every mutation of the packages' files for this system, in the order of files and lines.
func candidates(patterns []string) (list []mutation, err error) {
	format := `{{range .GoFiles}}{{$.ImportPath}} {{$.Dir}}/{{.}}{{"\n"}}{{end}}`
	text, ok := goTool(append([]string{"list", "-f", format}, patterns...)...)
	if !ok {
		return nil, fmt.Errorf("go list: %s", text)
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		text, err := os.ReadFile(f[1])
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, f[1], text, 0)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(here, f[1])
		if err != nil {
			return nil, err
		}
		add := func(from, to token.Pos, replace string) {
			p, q := set.Position(from), set.Position(to)
			if p.Line != q.Line {
				return
			}
			rest, _, _ := strings.Cut(string(text[q.Offset:]), "\n")
			list = append(list, mutation{
				pkg: f[0], file: f[1], at: fmt.Sprintf("%s:%d", name, p.Line),
				from: p.Offset, to: q.Offset, was: string(text[p.Offset:q.Offset]), text: replace, rest: rest,
			})
		}
		ast.Inspect(file, func(n ast.Node) bool { return mutate(n, add) })
	}
	return list, nil
}

// other is what an operator is exchanged for.
var other = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD, token.SHL: token.SHR, token.SHR: token.SHL,
	token.AND: token.OR, token.OR: token.AND, token.MUL: token.QUO, token.QUO: token.MUL,
}

// mutate calls add for each mutation of a node itself. It returns whether its parts can have any.
func mutate(n ast.Node, add func(from, to token.Pos, replace string)) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.BinaryExpr:
		if with, ok := other[n.Op]; ok {
			add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), with.String())
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			add(n.Pos(), n.X.Pos(), "")
		}
	case *ast.IfStmt:
		add(n.Cond.Pos(), n.Cond.Pos(), "false && ")
		add(n.Cond.Pos(), n.Cond.Pos(), "true || ")
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
			add(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			add(n.Pos(), n.End(), strconv.FormatBool(n.Name == "false"))
		}
	case *ast.ExprStmt:
		if logs(n.X) {
			return false
		}
		add(n.Pos(), n.End(), "")
	case *ast.DeferStmt, *ast.IncDecStmt, *ast.BranchStmt:
		add(n.Pos(), n.End(), "")
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			add(n.Pos(), n.End(), "")
		}
	}
	return true
}

// logs reports whether a call only writes to the log, which no test has to notice.
func logs(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"Info", "InfoS", "Error", "ErrorS", "Warn", "Debug", "Infof", "Warning"}, sel.Sel.Name)
}
