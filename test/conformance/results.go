package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// outcome is how a test ended.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped" // by the test itself, because it does not fit the cluster
)

// result is one test that ran. Message is why it failed or was skipped, one line.
type result struct {
	Test    string
	Outcome outcome
	Message string
}

// junit is the part of e2e.test's report that is read.
type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string   `xml:"name,attr"`
			Skipped *verdict `xml:"skipped"`
			Failure *verdict `xml:"failure"`
			Error   *verdict `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

type verdict struct {
	Message string `xml:"message,attr"`
}

// selfSkipped begins the message of a test that has skipped itself. A test that was not selected has none.
const selfSkipped = "skipped - "

// readResults reads the reports of a run, sorted by test. A folder without a test that ran is an error.
func readResults(dir string) (results []result, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var report junit
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, suite := range report.Suites {
			for _, c := range suite.Cases {
				r := result{Test: strings.TrimPrefix(c.Name, "[It] "), Outcome: passed}
				switch {
				case c.Failure != nil:
					r.Outcome, r.Message = failed, firstLine(c.Failure.Message)
				case c.Error != nil:
					r.Outcome, r.Message = failed, firstLine(c.Error.Message)
				case c.Skipped != nil && !strings.HasPrefix(c.Skipped.Message, selfSkipped):
					continue
				case c.Skipped != nil:
					r.Outcome, r.Message = skipped, firstLine(strings.TrimPrefix(c.Skipped.Message, selfSkipped))
				}
				if strings.HasPrefix(c.Name, "[It] ") || r.Outcome == failed { // a failed set-up of the suite is a failure
					results = append(results, r)
				}
			}
		}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("%s: no test has run", dir)
	}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.Test, b.Test) })
	return results, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
