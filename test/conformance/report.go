package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// planes are the Service proxies that a cluster can have: nkp's data planes, and the reference.
var planes = []string{"ovs", "iptables", "nftables", "kube-proxy"}

// ipFamilies are the address families that a cluster can have.
var ipFamilies = []string{"ipv4", "ipv6", "dual"}

// record is a run of one plane. Without its results' messages it is kept in the folder results of this module.
type record struct {
	Plane    string            `json:"plane"`
	Variant  string            `json:"variant,omitempty"` // what is not as in an ordinary run
	IPFamily string            `json:"ipFamily"`
	Overlay  string            `json:"overlay,omitempty"` // "": the one named like the plane
	Whole    bool              `json:"whole"`             // not the smoke tests alone
	Date     time.Time         `json:"date"`
	Minutes  float64           `json:"minutes"` // of the tests
	Nodes    int               `json:"nodes"`
	Versions map[string]string `json:"versions"`
	Results  []result          `json:"-"`
}

// stored is the form of a record in its file, a line for each test, so that two runs can be compared.
type stored struct {
	record
	Results map[string]outcome `json:"results"`
}

// name is how the record is called in the report.
func (r *record) name() string {
	if r.Variant == "" {
		return r.Plane
	}
	return r.Plane + ", " + r.Variant
}

// unsafe are the characters of a variant that stay out of names of files.
var unsafe = regexp.MustCompile(`[^\w.-]+`)

// fileName is how the files of a plane and a variant are called.
func fileName(plane, variant string) string {
	if variant == "" {
		return plane
	}
	return plane + "-" + unsafe.ReplaceAllString(variant, "_")
}

// records is the folder of the records, the last of each plane and variant without an unexpected result.
func (s *settings) records() string { return filepath.Join(s.module(), "results") }

// write replaces the record of the same plane and variant.
func (r *record) write(dir string) error {
	s := stored{*r, map[string]outcome{}}
	for _, t := range r.Results {
		s.Results[t.Test] = t.Outcome
	}
	s.Date = s.Date.Truncate(time.Second)
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fileName(r.Plane, r.Variant)+".json"), append(text, '\n'), 0o644)
}

func readRecord(file string) (record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return record{}, err
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return record{}, fmt.Errorf("%s: %w", file, err)
	}
	r := s.record
	for _, test := range slices.Sorted(maps.Keys(s.Results)) {
		r.Results = append(r.Results, result{Test: test, Outcome: s.Results[test]})
	}
	return r, nil
}

// lastRecord reads the record that a run's would replace. Without one it returns an empty record.
func lastRecord(dir string, r *record) (*record, error) {
	last, err := readRecord(filepath.Join(dir, fileName(r.Plane, r.Variant)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return &record{}, nil
	}
	if err == nil && last.Variant != r.Variant {
		err = fmt.Errorf("the record of %q would replace that of %q: their files have one name", r.Variant, last.Variant)
	}
	return &last, err
}

// lost returns the tests that the last run of the same release of Kubernetes had and this one has not, a line each: it was not complete.
func lost(last, r *record) (complaints []string) {
	if last.Versions["Kubernetes"] != r.Versions["Kubernetes"] {
		return nil
	}
	for _, t := range last.Results {
		if !slices.ContainsFunc(r.Results, func(o result) bool { return o.Test == t.Test }) {
			complaints = append(complaints, fmt.Sprintf("DID NOT RUN, but did on %s: %s", last.Date.UTC().Format(time.DateOnly), t.Test))
		}
	}
	return complaints
}

// readRecords reads the records of what has run, in the order of planes.
func readRecords(dir string) (records []record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		r, err := readRecord(file)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(slices.Index(planes, a.Plane), slices.Index(planes, b.Plane)), cmp.Compare(a.Variant, b.Variant))
	})
	return records, nil
}

func (r *record) count(o outcome) (n int) {
	for _, t := range r.Results {
		if t.Outcome == o {
			n++
		}
	}
	return n
}

// writeReport writes docs/conformance.md: versions, a line for each plane, and the expected failures.
func writeReport(w io.Writer, records []record, list []expectation) error {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("# Kubernetes' own network tests")
	p("")
	p("`make conformance` writes this page. It builds a cluster on one machine, in which each plane in turn is the only Service proxy, and runs upstream's unmodified `e2e.test` in it ([test/conformance](../test/conformance)). A failure that [expected.yaml](../test/conformance/expected.yaml) does not list fails the run, and so does a listed one that passes. Each line and each column is the last run without either, at the date and the commit that it names ([each test](../test/conformance/results/tests.md)).")
	p("")
	p("| plane | passed | failed | skipped | minutes | nodes | date | versions |")
	p("|---|--:|--:|--:|--:|--:|---|---|")
	for i := range records {
		r := &records[i]
		var versions []string
		for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
			versions = append(versions, name+" "+r.Versions[name])
		}
		p("| %s | %d | %d | %d | %.0f | %d | %s | %s |", cell(r.name()), r.count(passed), r.count(failed), r.count(skipped), r.Minutes, r.Nodes,
			r.Date.UTC().Format(time.DateOnly), strings.Join(versions, ", "))
	}
	p("")
	p("## Expected failures")
	p("")
	p("| test | planes | overlays | address families | reason |")
	p("|---|---|---|---|---|")
	all := func(list []string) string { return cmp.Or(strings.Join(list, ", "), "all") }
	for _, e := range list {
		p("| %s | %s | %s | %s | %s |", cell(e.Test), strings.Join(e.Planes, ", "), all(e.Overlays), all(e.IPFamilies), cell(e.Reason))
	}
	return nil
}

// writeTests writes results/tests.md: a line for each test, and a column for each record.
func writeTests(w io.Writer, records []record, list []expectation) error {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

	p("# Each test")
	p("")
	p("`make conformance` writes this page beside [docs/conformance.md](../../../docs/conformance.md), which has the date and the versions of each column.")
	p("")
	head, rule := "| test |", "|---|"
	byTest := map[string][]string{}
	for i := range records {
		r := &records[i]
		head, rule = head+" "+cell(r.name())+" |", rule+"---|"
		for _, t := range r.Results {
			if byTest[t.Test] == nil {
				byTest[t.Test] = slices.Repeat([]string{"–"}, len(records))
			}
			text := string(t.Outcome)
			if t.Outcome == failed {
				text = "**failed**"
				if expectedFor(list, r, t.Test) != nil {
					text = "expected failure"
				}
			}
			byTest[t.Test][i] = text
		}
	}
	p("%s", head)
	p("%s", rule)
	for _, test := range slices.Sorted(maps.Keys(byTest)) {
		p("| %s | %s |", cell(test), strings.Join(byTest[test], " | "))
	}
	return nil
}

// cell returns a text for a cell of a table.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "[", "\\[", "<", "&lt;").Replace(s)
}
