package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/nkp-proxy/nkp"

// An inputSet tells which files of the repository a suite depends on.
type inputSet struct {
	trees    []string        // folders with all below them
	packages map[string]bool // folders of Go packages of the main module, with their files, embedded ones and testdata
	globs    []string
}

// inputs returns what the suite depends on: its own folders, the packages of the main module that its Go files import and its
// programs are built from, directly or through others, and its globs. It reads imports instead of loading the suites' own
// modules, because some of those require all of Kubernetes.
func (s suite) inputs(packages graph) (*inputSet, error) {
	in := &inputSet{trees: s.dirs, packages: map[string]bool{}, globs: s.globs}
	builds := slices.Clone(s.builds)
	for _, dir := range s.dirs {
		imports, err := importsBelow(dir)
		if err != nil {
			return nil, err
		}
		for _, pkg := range imports {
			builds = append(builds, build{pkg, "linux"})
		}
	}

	for _, b := range builds {
		for _, dir := range packages[b] {
			in.packages[dir] = true
		}
	}
	if len(in.packages) > 0 || len(s.dirs) > 0 {
		in.globs = append(slices.Clone(in.globs), "go.mod", "go.sum")
	}
	return in, nil
}

// A graph has, for each package of the main module and each system, the folders of the packages of the main module that it is built
// from, itself included. A folder is relative to the repository; "." is the root.
type graph map[build][]string

// loadGraph asks the go command. Packages that have no files for a system are left out.
func loadGraph() (graph, error) {
	packages := graph{}
	for _, goos := range []string{"linux", "windows"} {
		const format = `{{.ImportPath}} {{join .Deps " "}}`
		cmd := exec.Command(".ci/go", "list", "-e", "-f", format, "./...")
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", goos, stderrOf(err))
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			var dirs []string
			for _, pkg := range fields {
				if pkg == module {
					dirs = append(dirs, ".")
				} else if dir, ours := strings.CutPrefix(pkg, module+"/"); ours {
					dirs = append(dirs, dir)
				}
			}
			packages[build{fields[0], goos}] = dirs
		}
	}
	return packages, nil
}

// has reports whether a file is an input.
func (in *inputSet) has(file string) bool {
	if strings.HasSuffix(file, ".md") && !strings.Contains(file, "testdata/") {
		return slices.ContainsFunc(in.globs, func(g string) bool { return matches(g, file) })
	}
	if slices.ContainsFunc(in.trees, func(t string) bool { return strings.HasPrefix(file, t+"/") }) {
		return true
	}
	if slices.ContainsFunc(in.globs, func(g string) bool { return matches(g, file) }) {
		return true
	}
	// Tests of another suite are not built here, and neither is what they read.
	if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") {
		return false
	}
	if strings.HasSuffix(file, ".go") {
		return in.packages[path.Dir(file)]
	}
	return in.packages[packageAbove(path.Dir(file))]
}

// packageAbove returns the nearest folder from dir upwards that holds Go files: the package that may embed what is in dir.
func packageAbove(dir string) string {
	for dir != "." {
		if files, _ := filepath.Glob(filepath.Join(dir, "*.go")); len(files) > 0 {
			return dir
		}
		dir = path.Dir(dir)
	}
	return "" // files in the repository's root, and in folders without Go, are documents and settings
}

func matches(glob, file string) bool {
	if strings.HasSuffix(glob, "/") {
		return strings.HasPrefix(file, glob)
	}
	ok, err := path.Match(glob, file)
	return ok && err == nil // TestSuites parses every glob
}

// importsBelow returns the packages of the main module that Go files in dir and below import, tests included.
func importsBelow(dir string) ([]string, error) {
	seen := map[string]bool{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			rel, ours := strings.CutPrefix(imported, module+"/")
			if ours && !ownModule(rel) {
				seen[imported] = true
			}
		}
		return nil
	})
	var list []string
	for pkg := range seen {
		list = append(list, pkg)
	}
	slices.Sort(list)
	return list, err
}

// ownModule reports whether a folder is part of another Go module than the repository's main one.
func ownModule(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}
