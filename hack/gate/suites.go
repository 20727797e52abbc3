package main

// A suite is a target of the Makefile that tests something.
type suite struct {
	target string // of make
	when   when
	about  string // what it needs, or why it is not for every change

	// Its inputs; see inputs. A change to any of them touches the suite.
	dirs   []string // folders of its own sources, with all below them
	builds []build  // programs of the main module that it builds, beside what the Go files in dirs import
	globs  []string // other files, as path.Match has them; a pattern that ends in / stands for all below it
}

// A build is a package of the main module, by its import path, for one operating system.
type build struct{ pkg, goos string }

// when says which changes a suite runs for, in the gate.
type when int

const (
	always  when = iota
	touched      // if the change touches it
	atNight      // never; its record is checked if the change touches it
)

func (w when) String() string { return [...]string{"every change", "when touched", "at night"}[w] }

var (
	linux   = build{module, "linux"}
	windows = build{module, "windows"}
)

// suites are in the order in which they run: the first to fail is most likely to be the cheapest.
var suites = []suite{
	{target: "lint", when: always, about: "format, vet on both systems, staticcheck"},
	{target: "test", when: always, about: "the main module's tests"},
	{
		target: "deploy-check", when: touched, about: "alerts, dashboard, chart",
		dirs: []string{"deploy/grafana", "deploy/helm", "deploy/prometheus", "deploy/kubernetes"},
	},

	{target: "test-bench", when: touched, about: "the benchmark's own tests", dirs: []string{"test/bench"}},
	{target: "test-conformance", when: touched, about: "the conformance suite's own tests", dirs: []string{"test/conformance"}},
	{
		target: "verify", when: touched, about: "fetches the modules of every suite",
		globs: []string{"go.sum", "*/go.sum", "*/*/go.sum", "*/*/*/go.sum", "*/*/*/*/go.sum"},
	},

	{
		target: "test-all-units", when: atNight, about: "the main module's tests that no other suite has",
		dirs: []string{"fallback", "hack", "internal", "k8s", "ofctrl", "ovsdb", "pipeline", "test/oracle", "test/testbed", "windows"},
	},
	{target: "test-all-fallback", when: atNight, about: "iptables and nftables by packet", dirs: []string{"fallback"}},
	{
		target: "test-all-semantics", when: atNight, about: "each rule of kube-proxy, on all data planes",
		dirs: []string{"test/semantics"}, builds: []build{linux},
	},
	packets("test-all-packets-1", "A to C"),
	packets("test-all-packets-2", "D to G"),
	packets("test-all-packets-3", "H to M"),
	packets("test-all-packets-4", "N to R"),
	packets("test-all-packets-5", "S"),
	packets("test-all-packets-6", "T to Z"),
	{target: "faults", when: atNight, about: "minutes of faults under load", dirs: []string{"test/faults"}, builds: []build{linux}},
	{
		target: "fuzz", when: atNight, about: "a minute for each target",
		dirs: []string{"k8s", "ofctrl", "ovsdb", "fallback", "internal"},
	},
	{target: "differential", when: atNight, about: "compiles kube-proxy's code", dirs: []string{"test/k8s/differential"}},
	{
		target: "e2e", when: atNight, about: "compiles a kube-apiserver",
		dirs: []string{"test/k8s/e2e", "deploy/helm", "deploy/kubernetes", "docs/operate"}, builds: []build{linux},
	},
	{target: "peers", when: atNight, about: "compiles kube-proxy", dirs: []string{"test/fallback", "fallback"}, builds: []build{linux}},
	{
		target: "test-deploy", when: atNight, about: "packages, images, the packet tests under the unit's restrictions",
		dirs: []string{"deploy", "test/deploy"}, builds: []build{linux, windows},
	},
	{
		target: "test-windows", when: atNight, about: "compiles kube-proxy.exe; installs Wine",
		dirs: []string{"test/k8s/windows", "test/hnsfake", "windows"}, builds: []build{windows},
	},
	{
		target: "test-kernel", when: atNight, about: "the kernel datapath, in an emulated machine",
		dirs: []string{"test/kernel", "test/packets", "test/semantics"}, builds: []build{linux},
	},
	{target: "test-ui", when: atNight, about: "installs Chromium", dirs: []string{"test/ui", "internal/ui"}, builds: []build{linux}},
	{
		target: "conformance-smoke", when: atNight, about: "a real cluster; half an hour to compile",
		dirs: []string{"test/conformance", "deploy/kubernetes"}, builds: []build{linux},
	},
}

// packets returns the suite that has the tests of test/packets whose names begin with the letters.
func packets(target, letters string) suite {
	return suite{
		target: target, when: atNight, about: "packets through a private switch, tests " + letters,
		dirs: []string{"test/packets"}, builds: []build{linux},
	}
}

// suiteNamed returns the suite of a make target.
func suiteNamed(target string) (suite, bool) {
	for _, s := range suites {
		if s.target == target {
			return s, true
		}
	}
	return suite{}, false
}
