package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed expected.yaml
var expectedText []byte

// expectation is a test that fails in some planes for a known reason. Test is a part of its name that no other test has.
type expectation struct {
	Test       string   `json:"test"`
	Planes     []string `json:"planes"`
	IPFamilies []string `json:"ipFamilies,omitempty"` // of the cluster; none: all
	Overlays   []string `json:"overlays,omitempty"`   // that the run names (-overlay); none: all
	Since      string   `json:"since,omitempty"`      // the release of Kubernetes that has added the test, such as 1.37; "": all have it
	Reason     string   `json:"reason"`
}

// applies reports whether the test is expected to fail in a run.
func (e *expectation) applies(r *record) bool {
	return slices.Contains(e.Planes, r.Plane) && (len(e.IPFamilies) == 0 || slices.Contains(e.IPFamilies, r.IPFamily)) &&
		(len(e.Overlays) == 0 || slices.Contains(e.Overlays, r.Overlay)) && !older(r.Versions["Kubernetes"], e.Since)
}

// older reports whether a version is of an earlier release than another one. A text that is no version is not.
func older(version, release string) bool {
	var major, minor, ofMajor, ofMinor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	n, _ := fmt.Sscanf(release, "%d.%d", &ofMajor, &ofMinor)
	return n == 2 && (major < ofMajor || major == ofMajor && minor < ofMinor)
}

// readExpected reads the list of expected failures, which must be complete and without doubles.
func readExpected(text []byte) (list []expectation, err error) {
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, err
	}
	for i, e := range list {
		switch {
		case e.Test == "" || e.Reason == "" || len(e.Planes) == 0:
			return nil, fmt.Errorf("item %d (%q): test, planes and reason are needed", i+1, e.Test)
		case slices.ContainsFunc(e.Planes, func(p string) bool { return !slices.Contains(planes, p) }):
			return nil, fmt.Errorf("item %d (%q): planes are %q, not all of them %q", i+1, e.Test, e.Planes, planes)
		case slices.ContainsFunc(e.IPFamilies, func(f string) bool { return !slices.Contains(ipFamilies, f) }):
			return nil, fmt.Errorf("item %d (%q): ipFamilies are %q, not all of them %q", i+1, e.Test, e.IPFamilies, ipFamilies)
		case slices.ContainsFunc(list[:i], func(o expectation) bool {
			return o.Test == e.Test && slices.Equal(o.IPFamilies, e.IPFamilies) && slices.Equal(o.Overlays, e.Overlays)
		}):
			return nil, fmt.Errorf("item %d: %q is there twice", i+1, e.Test)
		}
	}
	return list, nil
}

// expectedFor returns the expectation for a test in a run, or nil.
func expectedFor(list []expectation, r *record, test string) *expectation {
	for i := range list {
		if list[i].applies(r) && strings.Contains(test, list[i].Test) {
			return &list[i]
		}
	}
	return nil
}

// judge returns what makes a run fail, a line each: failures that are not expected, expected ones that passed, and
// expectations whose test did not run, which is looked at only if the run was whole.
func judge(list []expectation, r *record) (complaints []string) {
	seen := map[*expectation]bool{}
	for _, t := range r.Results {
		e := expectedFor(list, r, t.Test)
		if e != nil {
			seen[e] = true
		}
		switch {
		case t.Outcome == failed && e == nil:
			complaints = append(complaints, fmt.Sprintf("FAILED: %s: %s", t.Test, t.Message))
		case t.Outcome == passed && e != nil:
			complaints = append(complaints, fmt.Sprintf("PASSED, but is expected to fail (%s): %s", e.Reason, t.Test))
		}
	}
	for i := range list {
		if e := &list[i]; r.Whole && e.applies(r) && !seen[e] {
			complaints = append(complaints, fmt.Sprintf("DID NOT RUN, but is expected to fail: %s", e.Test))
		}
	}
	return complaints
}
