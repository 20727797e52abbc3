package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"
)

// recordFile holds what came of each suite of the night. `gate nightly` writes it; it is committed.
const recordFile = ".ci/nightly.json"

// maxAge is how many landings a record may be behind a change that touches its suite.
const maxAge = 30

// landingSpan is the time within which commits are taken for one landing. A clone does not show landings, and one may
// have a commit or sixty.
const landingSpan = 3 * time.Hour

// The results of a suite. A suite that has not run since it is in the list is pending; its age counts all the same.
const (
	passed  = "passed"
	failed  = "failed"
	pending = "pending"
)

// A record is the last run of a suite.
type record struct {
	Commit  string    `json:"commit"` // that was tested, with nothing uncommitted
	Result  string    `json:"result"` // passed, failed or pending
	Seconds int       `json:"seconds,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// records are by the suite's target.
type records map[string]record

func readRecords(file string) (records, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return records{}, nil
	}
	if err != nil {
		return nil, err
	}
	var r records
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// write replaces the file. A reader sees the old records or the new ones.
func (r records) write(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// problem returns why a suite's record stops a change that touches the suite; "": it does not. Without a history, records have no age.
func (r records) problem(target string, history bool) string {
	last, ok := r[target]
	switch {
	case !ok:
		return fmt.Sprintf("%s has no record in %s; run: make nightly SUITES=%s", target, recordFile, target)
	case last.Result == failed:
		return fmt.Sprintf("%s failed at night, at commit %.10s; mend it, then run: make nightly SUITES=%s", target, last.Commit, target)
	}
	if !history {
		return ""
	}

	age, err := landingsSince(last.Commit)
	switch {
	case err != nil:
		return fmt.Sprintf("%s: the record's commit is not in this history: %v", target, err)
	case age > maxAge:
		return fmt.Sprintf("%s last ran %d landings ago, and may be %d behind; run: make nightly SUITES=%s", target, age, maxAge, target)
	}
	return ""
}

// landingsSince returns how many landings came after a commit. The one that is being made counts, too.
func landingsSince(commit string) (n int, err error) {
	times, err := git("log", "--reverse", "--format=%ct", commit+"..HEAD")
	if err != nil {
		return 0, err
	}

	var begun time.Time
	for _, text := range times {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, err
		}
		if at := time.Unix(seconds, 0); n == 0 || at.Sub(begun) > landingSpan {
			n, begun = n+1, at
		}
	}
	return n, nil
}
