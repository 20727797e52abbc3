package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/nkp-proxy/nkp"

// mayImport says which of nkp's packages each package may import; a package also covers those below it. Data flows one
// way: source, model, plan, channel. Only the agent and the command line see them all.
var mayImport = map[string][]string{
	"":                          {"internal/command"},
	"k8s":                       {"k8s/internal"},
	"k8s/apiserver":             {"k8s"},
	"k8s/manifest":              {"k8s"},
	"pipeline/flow":             {},
	"pipeline":                  {"k8s", "pipeline/flow"},
	"ofctrl":                    {"pipeline/flow", "ofctrl"},
	"ovsdb":                     {},
	"fallback":                  {"internal/dataplane", "k8s", "fallback/serving", "internal/conntrack", "internal/dpctl", "internal/ports"},
	"fallback/serving":          {"k8s"},
	"fallback/iptables":         {"internal/dataplane", "k8s", "fallback", "fallback/iptables"},
	"fallback/iptables/rules":   {"k8s", "fallback/serving"},
	"fallback/iptables/restore": {"k8s"},
	"fallback/nftables":         {"internal/dataplane", "k8s", "fallback", "fallback/nftables"},
	"fallback/nftables/rules":   {"k8s", "fallback/serving"},
	"fallback/nftables/netlink": {"k8s", "fallback/nftables/rules"},
	"windows":                   {"internal/dataplane", "k8s", "windows"},
	"internal/node":             {},
	"internal/bridge":           {"internal/dataplane", "internal/node", "k8s", "pipeline", "ofctrl", "ovsdb", "internal/conntrack", "internal/dpctl", "internal/sysctl"},
	"internal/observe/health":   {"internal/dataplane", "k8s", "internal/httpguard"},
	"internal/httpguard":        {},
	"internal/dataplane":        {"k8s"},
	"internal/observe/metrics":  {"internal/dataplane", "k8s", "internal/httpguard"},
	"internal/observe/notify":   {},
	"internal/localhost":        {"internal/dataplane", "internal/httpguard", "k8s"},
	"internal/ports":            {"internal/dataplane", "k8s"},
	"internal/config":           {},
	"internal/ncpini":           {},
	"internal/sysctl":           {},
	"internal/trace":            {"k8s"},
	"internal/ui":               {"internal/httpguard"},
	"internal/remote":           {},
	"internal/dpctl":            {"k8s"},
	"internal/conntrack":        {"k8s", "internal/dpctl"},
	"internal/live":             {"k8s", "pipeline", "fallback/nftables/rules", "internal/conntrack", "internal/dpctl", "internal/sysctl", "internal/trace"},
	"internal/mode":             {"ovsdb", "fallback", "fallback/iptables", "fallback/nftables", "internal/bridge"},
	"internal/api":              {"internal/bridge", "fallback", "windows", "internal/dataplane", "internal/dpctl", "internal/localhost", "internal/observe/metrics", "internal/trace", "k8s", "k8s/apiserver"},
	"internal/agent":            {"internal/api", "internal/dataplane", "internal/mode", "k8s", "k8s/apiserver", "internal/httpguard", "pipeline", "ovsdb", "fallback", "fallback/iptables", "fallback/nftables", "windows", "internal/bridge", "internal/observe", "internal/localhost", "internal/ports", "internal/sysctl", "internal/trace", "internal/live", "internal/conntrack", "internal/dpctl"},
	"internal/command": {"internal/dataplane", "internal/dpctl", "k8s", "k8s/apiserver", "k8s/manifest", "pipeline", "ofctrl", "ovsdb", "fallback", "fallback/iptables", "fallback/nftables", "windows", "internal/agent", "internal/api", "internal/bridge",
		"internal/mode", "internal/sysctl", "internal/config", "internal/ncpini", "internal/trace", "internal/live", "internal/observe", "internal/httpguard", "internal/ui", "internal/remote"},
	"hack/demo":       {"test/testbed", "k8s"},
	"hack/gate":       {},
	"hack/mutate":     {},
	"hack/manual":     {"internal/command"},
	"hack/picture":    {"k8s", "pipeline"},
	"hack/record":     {},
	"hack/reference":  {"internal/command", "internal/config"},
	"test/testbed":    {"test/wait"},
	"test/apifake":    {"k8s"},
	"test/oracle":     {"k8s"},
	"test/harness":    {"test/testbed", "test/wait"},
	"test/inforce":    {"fallback", "internal/api"},
	"test/hnsfake":    {"windows/hns", "windows/plan"},
	"test/ofctrltest": {},
	"test/guardtest":  {"test/wait"},
	"test/golden":     {},
	"test/shapes":     {"k8s"},
	"test/wait":       {},
	"test/bound":      {},
	"test/chance":     {},
	"test/nightly":    {},
	"test/packets":    {"internal/observe/metrics"},
	"test/semantics":  {},
	"test/fallback":   {},
	"test/faults":     {"test/testbed", "test/ofctrltest"},

	// Modules of their own.
	"deploy/grafana":        {},
	"deploy/helm":           {},
	"deploy/image":          {},
	"test/bench":            {"test/testbed", "test/bench", "test/ofctrltest"},
	"test/deploy":           {},
	"test/ui":               {},
	"test/cni":              {},
	"test/conformance":      {},
	"test/k8s":              {"test/wait"},
	"test/k8s/differential": {"k8s", "k8s/manifest", "test/oracle"},
	"test/k8s/windows":      {"k8s", "windows", "test/hnsfake", "test/k8s/windows", "test/wait"},
}

// rooms are packages that a rule must name: the name of the package above them covers neither them nor what is below them.
var rooms = []string{"k8s/apiserver", "k8s/manifest", "fallback/iptables", "fallback/nftables"}

// covers reports whether a rule's name covers a package.
func covers(name, pkg string) bool {
	within := func(folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }
	return within(name) && !slices.ContainsFunc(rooms, func(room string) bool { return len(room) > len(name) && within(room) })
}

// mustNotImport lists libraries that a package must do without: the model and the plan are pure.
var mustNotImport = map[string][]string{
	"internal/trace":          {"antrea.io/", "github.com/ovn-kubernetes/", "net/http", "os", "time", "log"},
	"k8s":                     {"antrea.io/", "github.com/ovn-kubernetes/", "k8s.io/client-go/", "sigs.k8s.io/", "github.com/fsnotify/", "net/http", "os", "log"},
	"k8s/apiserver":           {"antrea.io/", "github.com/ovn-kubernetes/", "sigs.k8s.io/"},
	"k8s/manifest":            {"antrea.io/", "github.com/ovn-kubernetes/", "k8s.io/client-go/", "net/http"},
	"fallback/serving":        {"net/http", "os", "time", "log"},
	"fallback/iptables/rules": {"net/http", "os", "time", "log"},
	"fallback/nftables/rules": {"net/http", "os", "time", "log"},
	"pipeline":                {"antrea.io/", "github.com/ovn-kubernetes/", "net/http", "os", "time", "log"},
	"pipeline/flow":           {"antrea.io/", "github.com/ovn-kubernetes/", "k8s.io/", "net/http", "os", "time", "log"},
	"ofctrl":                  {"k8s.io/", "github.com/ovn-kubernetes/"},
	"ovsdb":                   {"k8s.io/", "antrea.io/"},
}

// The import directions of the house hold, on every system and in every module.
func TestImportDirections(t *testing.T) {
	imports, err := importsByPackage()
	must(t, err)
	for pkg, imports := range imports {
		rule, ok := lookup(mayImport, pkg)
		if !ok {
			t.Errorf("package %s has no import rule: say in house_test.go what it may import", pkg)
		}
		for imp := range imports {
			if in, ours := strings.CutPrefix(imp, module+"/"); ours {
				if !slices.ContainsFunc(rule, func(r string) bool { return covers(r, in) }) {
					t.Errorf("%s must not import %s", pkg, in)
				}
				continue
			}
			banned, _ := lookup(mustNotImport, pkg)
			for _, b := range banned {
				if imp == b || strings.HasSuffix(b, "/") && strings.HasPrefix(imp, b) {
					t.Errorf("%s must not import %s", pkg, imp)
				}
			}
		}
	}
}

// importsByPackage returns what the packages below this folder import, without their tests.
func importsByPackage() (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), ".")
		if all[pkg] == nil {
			all[pkg] = map[string]bool{}
		}
		for _, i := range file.Imports {
			imp, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			all[pkg][imp] = true
		}
		return nil
	})
	return all, err
}

// The model links neither a client of the API server nor a decoder of files, not even through others.
func TestModelIsPure(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./k8s").Output()
	must(t, err)
	for dep := range strings.Lines(string(out)) {
		for _, banned := range []string{"k8s.io/client-go/", "sigs.k8s.io/yaml", "github.com/fsnotify/", module + "/k8s/apiserver", module + "/k8s/manifest"} {
			if strings.HasPrefix(dep, banned) {
				t.Errorf("k8s links %s", dep)
			}
		}
	}
}

// Kubernetes' traffic policies are decided in package k8s alone (k8s.Router): what renders routes asks for none.
func TestPoliciesAreDecidedOnce(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch top, _, _ := strings.Cut(filepath.ToSlash(path), "/"); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "selftest" || slices.Contains([]string{"k8s", "test", "hack", "bin"}, top) || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "Local" || s.Sel.Name == "Cluster") {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "k8s" {
					t.Errorf("%v: k8s.%s is a policy: ask k8s.Router for the route", fset.Position(n.Pos()), s.Sel.Name)
				}
			}
			return true
		})
		return nil
	})
	must(t, err)
}

// lookup returns the rule of the package or of the nearest folder above it.
func lookup(rules map[string][]string, pkg string) ([]string, bool) {
	for {
		if r, ok := rules[pkg]; ok {
			return r, true
		}
		i := strings.LastIndexByte(pkg, '/')
		if i < 0 {
			return nil, false
		}
		pkg = pkg[:i]
	}
}

// Every package says in its doc.go (or main.go) what it is for.
func TestEveryPackageHasADocComment(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{.Doc}}`, "./...").Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if path, doc, _ := strings.Cut(strings.TrimSpace(line), "|"); doc == "" {
			t.Errorf("%s has no doc comment", path)
		}
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
