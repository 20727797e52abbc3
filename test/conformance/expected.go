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
	Test   string   `json:"test"`
	Planes []string `json:"planes"`
	Reason string   `json:"reason"`
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
		case slices.ContainsFunc(list[:i], func(o expectation) bool { return o.Test == e.Test }):
			return nil, fmt.Errorf("item %d: %q is there twice", i+1, e.Test)
		}
	}
	return list, nil
}

// expectedFor returns the expectation for a test in a plane, or nil.
func expectedFor(list []expectation, plane, test string) *expectation {
	for i := range list {
		if slices.Contains(list[i].Planes, plane) && strings.Contains(test, list[i].Test) {
			return &list[i]
		}
	}
	return nil
}

// judge returns what makes a run of a plane fail, a line each: failures that are not expected, expected ones that passed, and
// expectations whose test did not run, which is looked at only if the run was whole.
func judge(list []expectation, plane string, results []result, whole bool) (complaints []string) {
	seen := map[*expectation]bool{}
	for _, r := range results {
		e := expectedFor(list, plane, r.Test)
		if e != nil {
			seen[e] = true
		}
		switch {
		case r.Outcome == failed && e == nil:
			complaints = append(complaints, fmt.Sprintf("FAILED: %s: %s", r.Test, r.Message))
		case r.Outcome == passed && e != nil:
			complaints = append(complaints, fmt.Sprintf("PASSED, but is expected to fail (%s): %s", e.Reason, r.Test))
		}
	}
	for i := range list {
		if e := &list[i]; whole && slices.Contains(e.Planes, plane) && !seen[e] {
			complaints = append(complaints, fmt.Sprintf("DID NOT RUN, but is expected to fail: %s", e.Test))
		}
	}
	return complaints
}
