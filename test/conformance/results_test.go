package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const affinity = "[sig-network] Services should have session affinity timeout work for NodePort service [LinuxOnly]"

func report(t *testing.T, cases string) string {
	t.Helper()
	dir := t.TempDir()
	text := `<?xml version="1.0"?><testsuites><testsuite name="Kubernetes e2e suite">` + cases + `</testsuite></testsuites>`
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Tests that ran are read with their outcome; those that were not selected are left out. A suite whose set-up failed, and a run without a
// test, do not pass for a clean one.
func TestReadResults(t *testing.T) {
	dir := report(t, `
<testcase name="[SynchronizedBeforeSuite]" time="2"></testcase>
<testcase name="[It] `+affinity+`" time="35.5"><failure message="always the same&#xA;second line" type="failed">stack</failure></testcase>
<testcase name="[It] [sig-network] DNS should provide DNS for services [Conformance]" time="9"></testcase>
<testcase name="[It] [sig-network] Services of a cloud" time="1"><skipped message="skipped - Only supported for providers [gce]"></skipped></testcase>
<testcase name="[It] [sig-storage] not selected" time="0"><skipped message=""></skipped></testcase>
<testcase name="[It] [sig-network] panics" time="1"><error message="boom"></error></testcase>`)
	got, err := readResults(dir)
	want := []result{
		{"[sig-network] DNS should provide DNS for services [Conformance]", passed, ""},
		{"[sig-network] Services of a cloud", skipped, "Only supported for providers [gce]"},
		{affinity, failed, "always the same"}, {"[sig-network] panics", failed, "boom"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %+v", err, got)
	}
	got, err = readResults(report(t, `<testcase name="[SynchronizedBeforeSuite]"><failure message="no nodes"></failure></testcase>`))
	if err != nil || len(got) != 1 || got[0].Outcome != failed {
		t.Errorf("a failed set-up: %v, %+v", err, got)
	}
	for _, cases := range []string{"", `<testcase name="[It] x"><skipped message=""></skipped></testcase>`, "<testcase"} {
		if got, err := readResults(report(t, cases)); err == nil {
			t.Errorf("%q: %+v", cases, got)
		}
	}
	if got, err := readResults(t.TempDir()); err == nil {
		t.Errorf("no report: %+v", got)
	}
}

// An unlisted failure fails the run, and so do a listed one that passes and, in a whole run, one that did not run.
func TestJudge(t *testing.T) {
	list := []expectation{{"affinity timeout work for NodePort", []string{"ovs"}, []string{"ipv4"}, []string{"", "auto"}, "1.37", "known"}}
	for _, x := range []struct {
		plane, family, overlay string
		ended                  outcome
		want                   string
	}{
		{"ovs", "ipv4", "", failed, ""}, {"ovs", "ipv4", "auto", failed, ""}, {"ovs", "ipv4", "", skipped, ""}, {"iptables", "ipv4", "", passed, ""},
		{"ovs", "ipv6", "", passed, ""}, {"iptables", "ipv4", "", failed, "FAILED: "}, {"ovs", "ipv6", "", failed, "FAILED: "},
		{"ovs", "ipv4", "ovs-pods-only", failed, "FAILED: "}, {"ovs", "ipv4", "", passed, "PASSED, but is expected to fail (known)"},
	} {
		got := judge(list, &record{Plane: x.plane, IPFamily: x.family, Overlay: x.overlay, Results: []result{{Test: affinity, Outcome: x.ended}}, Whole: true})
		if text := strings.Join(got, "\n"); (text == "") != (x.want == "") || !strings.HasPrefix(text, x.want) {
			t.Errorf("%+v: %q", x, got)
		}
	}
	other := []result{{Test: "other", Outcome: passed}}
	if got := judge(list, &record{Plane: "ovs", IPFamily: "ipv4", Results: other, Whole: true}); len(got) != 1 || !strings.HasPrefix(got[0], "DID NOT RUN") {
		t.Errorf("%q", got)
	}
	if got := judge(list, &record{Plane: "ovs", IPFamily: "ipv4", Results: other}); len(got) > 0 {
		t.Errorf("smoke tests: %q", got)
	}
	for version, want := range map[string]int{"1.36.3": 0, "1.37.2": 1, "1.100.0": 1, "2.1.0": 1} { // the test is there since 1.37
		r := &record{Plane: "ovs", IPFamily: "ipv4", Results: other, Whole: true, Versions: map[string]string{"Kubernetes": version}}
		if got := judge(list, r); len(got) != want {
			t.Errorf("Kubernetes %s: %q", version, got)
		}
	}
}

// The list in the repository is in order, and a bad one is refused with the item's name.
func TestExpected(t *testing.T) {
	if _, err := readExpected(expectedText); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"- {test: a, planes: [ovs]}":                                                        `item 1 ("a"): test, planes and reason are needed`,
		"- {test: a, planes: [ovs], ipFamilies: [ip], reason: r}":                           `item 1 ("a"): ipFamilies are ["ip"]`,
		"- {test: a, planes: [ofs], reason: r}":                                             `item 1 ("a"): planes are ["ofs"]`,
		"- {test: a, planes: [ovs], reason: r}\n- {test: a, planes: [iptables], reason: r}": `item 2: "a" is there twice`,
		"- {test: a, planes: [ovs], raeson: r}":                                             `unknown field "raeson"`,
	} {
		if list, err := readExpected([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %+v", text, err, list)
		}
	}
}

// The smoke tests are selected by name, labels between the words or not, and one that upstream has renamed is noticed.
func TestSmoke(t *testing.T) {
	part := "Granular Checks: Services should be able to handle large requests: udp"
	results := []result{{Test: "[sig-network] Networking Granular Checks: Services [Slow] should be able to handle large requests: udp"}}
	if none := missing([]string{part, "Services should fly"}, results); !slices.Equal(none, []string{"Services should fly"}) {
		t.Errorf("%q", none)
	}
	results[0].Test = strings.Replace(results[0].Test, " [Slow]", "", 1)
	if none := missing([]string{part}, results); len(none) > 0 {
		t.Errorf("%q", none)
	}
	if n := len(smoke); n < 12 {
		t.Errorf("%d smoke tests", n)
	}
}

// The page has a line for each plane with its versions, a column for each, and a reason for each expected failure.
func TestReport(t *testing.T) {
	records := []record{
		{Plane: "ovs", Whole: true, Minutes: 31.4, Nodes: 3, Versions: map[string]string{"nkp": "v0.1.0", "Kubernetes": "1.37.2"},
			Results: []result{{Test: affinity, Outcome: failed}, {Test: "a | b", Outcome: passed}}},
		{Plane: "kube-proxy", Variant: "smoke tests, IPv6", Nodes: 3, Results: []result{{Test: affinity, Outcome: failed}}},
	}
	var b strings.Builder
	known := []expectation{{Test: "affinity timeout", Planes: []string{"ovs"}, Reason: "known"}}
	if err := errors.Join(writeReport(&b, records, known), writeTests(&b, records, known)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| ovs | 1 | 1 | 0 | 31 | 3 | 0001-01-01 | Kubernetes 1.37.2, nkp v0.1.0 |", "| kube-proxy, smoke tests, IPv6 | 0 | 1 | 0 |",
		"| affinity timeout | ovs | all | all | known |", "| test | ovs | kube-proxy, smoke tests, IPv6 |", `NodePort service \[LinuxOnly] | expected failure | **failed** |`, `| a \| b | passed | – |`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// The record of a run replaces that of the same plane and variant alone, and is read as it was written, but for messages. A run that has not
// all tests of the last one is not complete, unless Kubernetes is another one.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	r := &record{Plane: "ovs", Variant: "IPv6, only A|B", IPFamily: "ipv6", Nodes: 3, Versions: map[string]string{"Kubernetes": "1.37.2", "nkp": "abc1234"},
		Date: time.Date(2026, 11, 24, 1, 2, 3, 0, time.UTC), Results: []result{{"a", passed, ""}, {"b", failed, "why"}}}
	none, err := lastRecord(dir, r)
	if err != nil || len(lost(none, r)) > 0 {
		t.Errorf("before the first run: %+v, %v", none, err)
	}
	ordinary := *r
	ordinary.Variant = ""
	for _, w := range []*record{&ordinary, r, r} {
		if err := w.write(dir); err != nil {
			t.Fatal(err)
		}
	}
	records, err := readRecords(dir)
	want := *r
	want.Results = []result{{"a", passed, ""}, {"b", failed, ""}}
	if err != nil || len(records) != 2 || records[0].Variant != "" || !reflect.DeepEqual(records[1], want) {
		t.Errorf("%+v, %v", records, err)
	}
	last, err := lastRecord(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	other := *r
	other.Variant = "IPv6, only A B"
	if _, err := lastRecord(dir, &other); err == nil || !strings.Contains(err.Error(), other.Variant) {
		t.Errorf("a variant whose file has the same name: %v", err)
	}
	short := &record{Versions: map[string]string{"Kubernetes": "1.37.2"}, Results: []result{{"a", passed, ""}}}
	if got := lost(last, short); len(got) != 1 || got[0] != "DID NOT RUN, but did on 2026-11-24: b" {
		t.Errorf("%q", got)
	}
	short.Versions["Kubernetes"] = "1.38.0"
	if got := lost(last, short); len(got) > 0 {
		t.Errorf("another release: %q", got)
	}
}

// docs/conformance.md and results/tests.md are what the records in the repository make, and none of them has an unexpected result.
func TestPage(t *testing.T) {
	records, err := readRecords("results")
	if err != nil || len(records) == 0 {
		t.Fatal(len(records), err)
	}
	list, err := readExpected(expectedText)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if complaints := judge(list, &records[i]); len(complaints) > 0 {
			t.Errorf("%s: %q", records[i].name(), complaints)
		}
	}
	var b strings.Builder
	if err := writeReport(&b, records, list); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile("../../docs/conformance.md"); err != nil || string(page) != b.String() {
		t.Errorf("docs/conformance.md is not what its records make: go run . report ../../docs/conformance.md (%v)", err)
	}

	b.Reset()
	if err := writeTests(&b, records, list); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(testsPage); err != nil || string(page) != b.String() {
		t.Errorf("%s is not what the records make: go run . report ../../docs/conformance.md (%v)", testsPage, err)
	}
}

// An archive that containerd imports: each blob once, under the digest of its content, and each image by its names.
func TestArchive(t *testing.T) {
	host := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(host, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := layer(map[string]file{"program": {host: host}, "link": {link: "program"}, "tmp/": {}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := writeArchive(path, []image{{names: []string{"a:1", "b:1"}, layers: [][]byte{l}}, {names: []string{"c:1"}, layers: [][]byte{l}}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		if !strings.Contains(string(text), `"io.containerd.image.name":"`+name+`"`) {
			t.Errorf("%s is not in the archive", name)
		}
	}
	if n := strings.Count(string(text), "blobs/sha256/"); n != 3 { // a layer, one configuration, one manifest
		t.Errorf("%d blobs", n)
	}
}

// What programs print about themselves is read as a version.
func TestVersionIn(t *testing.T) {
	for text, want := range map[string]string{
		"Kubernetes v1.37.2": "1.37.2", "CoreDNS-1.14.6\nlinux/amd64, go1.26.8,": "1.14.6", "containerd github.com/containerd/containerd/v2 2.2.9+unknown ": "2.2.9",
		"ovs-vswitchd (Open vSwitch) 3.1.0\n": "3.1.0", "6.1.0-50-amd64": "6.1.0", "nkp 787a7a3 linux/amd64 go1.26.8": "787a7a3", "nkp v0.1.0-12-gabc1234 linux": "0.1.0-12-gabc1234",
		"none": "?",
	} {
		if got := versionIn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
