package main

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// Every suite is a target of the Makefile, its folders and programs exist, and its globs can be read.
func TestSuites(t *testing.T) {
	t.Chdir("../..")
	packages, err := loadGraph()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range suites {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(s.target) + `:`).Match(makefile) {
			t.Errorf("%s: not a target of the Makefile", s.target)
		}
		for _, dir := range s.dirs {
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				t.Errorf("%s: %s is no folder", s.target, dir)
			}
		}
		for _, g := range s.globs {
			if _, err := path.Match(g, ""); err != nil {
				t.Errorf("%s: %s: %v", s.target, g, err)
			}
		}
		if in, err := s.inputs(packages); err != nil {
			t.Errorf("%s: %v", s.target, err)
		} else if len(s.builds) > 0 && !in.packages["k8s"] {
			t.Errorf("%s builds nkp, and does not depend on its model", s.target)
		}
	}
}

// A change touches the suites that build what it changes, and no others.
func TestTouches(t *testing.T) {
	t.Chdir("../..")
	packages, err := loadGraph()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields("test-all-units test-all-packets-1 differential e2e test-windows test-kernel test-bench verify")
	inputs := map[string]*inputSet{}
	for _, name := range names {
		s, ok := suiteNamed(name)
		if !ok {
			t.Fatalf("there is no suite %s", name)
		}
		if inputs[name], err = s.inputs(packages); err != nil {
			t.Fatal(err)
		}
	}

	for _, tc := range []struct{ files, want string }{
		{"README.md docs/architecture.md Makefile", ""},
		{"main.go", "test-all-packets-1 e2e test-windows test-kernel"},
		{"k8s/tracker.go", "test-all-units test-all-packets-1 differential e2e test-windows test-kernel"},
		{"pipeline/service.go", "test-all-units test-all-packets-1 e2e test-windows test-kernel"}, // nkp.exe plans for a switch, too
		{"internal/bridge/liveness.go", "test-all-units test-all-packets-1 e2e test-windows test-kernel"},
		{"fallback/nftables/netlink/doc.go", "test-all-units test-all-packets-1 e2e test-kernel"}, // no part of nkp.exe
		{"test/hnsfake/serve.go", "test-all-units test-windows"},
		{"test/testbed/bed.go", "test-all-units test-all-packets-1 e2e test-windows test-kernel test-bench"},
		{"test/packets/life_test.go", "test-all-packets-1 test-kernel"},
		{"pipeline/ids_test.go", "test-all-units"},
		{"test/kernel/init", "test-kernel"},
		{"internal/ui/page/index.html", "test-all-units test-all-packets-1 e2e test-windows test-kernel"}, // embedded
		{"test/bench/main.go", "test-bench"},
		{"deploy/grafana/go.sum", "verify"},
		{"go.mod", "test-all-units test-all-packets-1 differential e2e test-windows test-kernel test-bench"},
	} {
		var touched []string
		for _, name := range names {
			if (change{files: strings.Fields(tc.files)}).touches(inputs[name]) != "" {
				touched = append(touched, name)
			}
		}
		if got := strings.Join(touched, " "); got != tc.want {
			t.Errorf("%s: touches %q, want %q", tc.files, got, tc.want)
		}
	}
}

// A record stops a change if it is missing, red or old, or of a commit that is not in the history.
func TestRecords(t *testing.T) {
	t.Chdir(t.TempDir())
	landings := 0
	commit := func(n int) string {
		for range n {
			landings++
			for range 2 { // a landing has several commits
				t.Setenv("GIT_COMMITTER_DATE", time.Date(2026, 1, landings, 1, 0, 0, 0, time.UTC).Format(time.RFC3339))
				mustGit(t, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--allow-empty", "--message=x")
			}
		}
		return mustGit(t, "rev-parse", "HEAD")
	}
	mustGit(t, "init", "--quiet")
	old := commit(1)
	recent := commit(1)
	commit(maxAge)
	written := records{
		"good": {Commit: recent, Result: passed}, "new": {Commit: recent, Result: pending}, "red": {Commit: recent, Result: failed},
		"old": {Commit: old, Result: passed}, "foreign": {Commit: strings.Repeat("1", 40), Result: passed},
	}
	if err := written.write("records.json"); err != nil {
		t.Fatal(err)
	}
	read, err := readRecords("records.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"good": "", "new": "", "red": "red failed at night", "old": "31 landings ago", "foreign": "not in this history", "none": "no record",
	} {
		if got := read.problem(name, true); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if old, red := read.problem("old", false), read.problem("red", false); old != "" || red == "" {
		t.Errorf("without a history: %q and %q", old, red)
	}
	if none, err := readRecords("no such file"); err != nil || len(none) != 0 {
		t.Errorf("no file: %v, %v", none, err)
	}
}

// Without origin/main, a change is the commits of one session; with it, what came since HEAD left it. Files that are not committed
// are part of the change.
func TestChange(t *testing.T) {
	t.Chdir(t.TempDir())
	mustGit(t, "init", "--quiet", "--initial-branch=main")
	commit := func(hour, file string) string {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		mustGit(t, "add", file)
		t.Setenv("GIT_COMMITTER_DATE", "2026-01-02T"+hour+":00Z")
		mustGit(t, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message="+file)
		return mustGit(t, "rev-parse", "HEAD")
	}
	check := func(what, base, wantBase string, want ...string) {
		t.Helper()
		c, err := changeSince(base)
		if err != nil || c.base != wantBase || !slices.Equal(c.files, want) {
			t.Errorf("%s: %v since %s (%v), want %v since %s", what, c.files, c.base, err, want, wantBase)
		}
	}

	if c, err := changeSince(""); err == nil {
		t.Errorf("a repository without commits has the change %+v", c)
	}
	if (change{unknown: true}).touches(&inputSet{}) == "" {
		t.Error("a change that is not known touches nothing")
	}

	first := commit("01:00", "a")
	landed := commit("02:00", "b")
	commit("05:00", "c")
	commit("06:00", "d")
	check("a session", "", landed, "c", "d")
	check("a named base", first, first, "b", "c", "d")
	check("a base that is not there", strings.Repeat("0", 40), landed, "c", "d")

	mustGit(t, "update-ref", "refs/remotes/origin/main", first)
	check("a branch", "", first, "b", "c", "d")

	if err := os.WriteFile("e", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check("a new file", landed, landed, "c", "d", "e")
}

func mustGit(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// make test-all leaves out no test of the main module, and has none twice: each package that is not one of the suites peers and
// faults is in one of its suites, and each test of test/packets is in one part.
func TestNightIsWhole(t *testing.T) {
	t.Chdir("../..")
	packages, err := loadGraph()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)\nNIGHT = (.*?[^\\])\n`).FindSubmatch(makefile)
	if list == nil {
		t.Fatal("the Makefile has no list NIGHT")
	}

	var rest *regexp.Regexp // packages that are not in test-all-units
	var parts []*regexp.Regexp
	apart := []string{"test/fallback", "test/faults"}
	for _, target := range strings.Fields(strings.ReplaceAll(string(list[1]), "\\", "")) {
		if s, ok := suiteNamed(target); !ok || s.when != atNight {
			t.Errorf("%s is no suite of the night", target)
		}
		line := regexp.MustCompile(`(?m)^` + target + `: +TESTED = (.*)$`).FindSubmatch(makefile)
		if line == nil {
			t.Fatalf("%s: the Makefile does not say what it tests", target)
		}
		tested := strings.ReplaceAll(string(line[1]), "$$", "$")
		dir, part, divided := strings.Cut(strings.TrimPrefix(tested, "./"), " -run ")
		if _, pattern, ok := strings.Cut(tested, "grep -vE "); ok {
			rest = regexp.MustCompile(strings.Trim(pattern, "')"))
			continue
		}
		if divided {
			parts = append(parts, regexp.MustCompile(strings.Trim(part, "'")))
		}
		if !divided || len(parts) == 1 {
			apart = append(apart, dir)
		}
	}

	for pkg := range packages {
		dir := strings.TrimPrefix(pkg.pkg, module+"/")
		if in := !rest.MatchString(pkg.pkg); in == slices.Contains(apart, dir) {
			t.Errorf("%s: in test-all-units %v, in a suite of its own %v", dir, in, !in)
		}
	}
	files, err := filepath.Glob("test/packets/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllSubmatch(text, -1) {
			n := 0
			for _, part := range parts {
				if part.Match(found[1]) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%s is in %d parts", found[1], n)
			}
		}
	}
}

// The nightly workflow runs every suite that is not for every change, and every such suite has a record.
func TestWorkflow(t *testing.T) {
	t.Chdir("../..")
	var want []string
	recorded, err := readRecords(recordFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range suites {
		if s.when == always {
			continue
		}
		want = append(want, s.target)
		if _, ok := recorded[s.target]; !ok {
			t.Errorf("%s has no record in %s", s.target, recordFile)
		}
	}

	data, err := os.ReadFile(filepath.Join(".github", "workflows", "nightly.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs struct {
			Long struct {
				Strategy struct {
					Matrix struct{ Command []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &workflow); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, command := range workflow.Jobs.Long.Strategy.Matrix.Command {
		if suite, ok := strings.CutPrefix(command, "make nightly SUITES="); ok {
			have = append(have, suite)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("nightly.yml runs %q, want %q", have, want)
	}
}
