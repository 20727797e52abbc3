package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// runsPrograms are the packages in the binary that may import os/exec, and why.
var runsPrograms = map[string]string{
	module + "/fallback/iptables/restore":          "runs iptables",
	"github.com/coreos/go-iptables/iptables":       "asks the iptables that it is given a path to for its version",
	"k8s.io/client-go/plugin/pkg/client/auth/exec": "credentials by a program: k8s refuses them (TestNoCredentialPrograms), kubectl nkp runs it as kubectl does",
	module + "/windows":                            "runs netsh, which alone lists the dynamic ports and those that are reserved",
	module + "/windows/service":                    "the Windows installer runs the nkp.exe that it installs",
	"github.com/google/gnostic-models/compiler":    "extensions of an OpenAPI compiler, which nothing calls",
}

// replacesItself is the one file that may call syscall.Exec: a new configuration restarts nkp.
const replacesItself = "internal/command/restart_unix.go"

// startsProcess are functions that start a process without os/exec.
var startsProcess = []string{
	"os.StartProcess", "syscall.StartProcess", "syscall.ForkExec", "syscall.Exec", "unix.Exec", "syscall.CreateProcess", "windows.CreateProcess",
	"syscall.CreateProcessAsUser", "windows.CreateProcessAsUser", "windows.ShellExecute",
}

// nkp runs iptables and its kin, by path and argument vector, and no other program: in no file of the binary, on no system. On
// Windows the installer runs nkp.exe, and the plane runs netsh.
func TestOnlyIptablesIsRun(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		for _, p := range inBinary(t, goos, `{{.ImportPath}}|{{.Dir}}|{{join .Imports " "}}|{{join .GoFiles " "}}`) {
			fields := strings.Split(p, "|")
			path, dir, imports, files := fields[0], fields[1], strings.Fields(fields[2]), strings.Fields(fields[3])
			if slices.Contains(imports, "os/exec") && runsPrograms[path] == "" {
				t.Errorf("%s: %s imports os/exec: nkp runs no programs but iptables", goos, path)
			}
			if path != module && !strings.HasPrefix(path, module+"/") {
				continue
			}
			for _, f := range files {
				checkPrograms(t, filepath.Join(dir, f))
			}
		}
	}
}

// inBinary returns a line for each package that is not of the standard library.
func inBinary(t *testing.T, goos, format string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}"+format+"{{end}}", ".")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	out, err := cmd.Output()
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 50 {
		t.Fatalf("only %d packages", len(lines))
	}
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}

// checkPrograms looks at each call in a file. What is run must be a field that names a program found by find (programs.go of
// fallback/iptables/restore), never a text that was put together.
func checkPrograms(t *testing.T, file string) {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, nil, 0)
	must(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, at := selector(call.Fun), fset.Position(call.Pos())
		switch {
		case name == "exec.CommandContext" && len(call.Args) >= 2:
			if filepath.Base(filepath.Dir(file)) == "service" && strings.HasSuffix(file, "_windows.go") ||
				filepath.Base(file) == "ports_windows.go" {
				break
			}
			if program := selector(call.Args[1]); !regexp.MustCompile(`(^|\.)progs\.(iptables|restore|save)$`).MatchString(program) {
				t.Errorf("%s: runs something else than iptables", at)
			}
		case name == "exec.Command" || name == "exec.CommandContext":
			t.Errorf("%s: a program without a context", at)
		case slices.Contains(startsProcess, name) && !strings.HasSuffix(file, filepath.FromSlash(replacesItself)):
			t.Errorf("%s: %s", at, name)
		}
		for _, arg := range call.Args {
			if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, _ := strconv.Unquote(lit.Value); slices.Contains([]string{"sh", "bash", "/bin/sh", "/bin/bash", "cmd.exe", "powershell", "powershell.exe"}, s) {
					t.Errorf("%s: a shell, %q", at, s)
				}
			}
		}
		return true
	})
}

// selector writes a chain of names: exec.CommandContext, t.progs.save.
func selector(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return selector(e.X) + "." + e.Sel.Name
	}
	return "?"
}
