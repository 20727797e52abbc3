package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// A change is the commits from base to HEAD, and what is not committed yet.
type change struct {
	base  string
	files []string // paths in the repository, sorted

	// unknown is set where git does not show the change, in an export or in a clone that belongs to another user. It touches
	// every suite, and the age of records is not known either.
	unknown bool
}

// changeSince returns the change that starts at base; "": see usage.
func changeSince(base string) (change, error) {
	// A push that makes a branch, or replaces one, names a commit that is not there.
	if _, err := git("rev-parse", "--quiet", "--verify", base+"^{commit}"); base == "" || err != nil {
		if base, err = findBase(); err != nil {
			return change{}, err
		}
	}
	files, err := changedFiles(base)
	return change{base: base, files: files}, err
}

// findBase returns the commit that HEAD's change most likely starts from. In a clone without a branch that HEAD left,
// that is one a landing's span before HEAD.
func findBase() (string, error) {
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	if fork, err := git("merge-base", "HEAD", "origin/main"); err == nil && fork[0] != head[0] {
		return fork[0], nil
	}

	log, err := git("log", "--first-parent", "--format=%H %ct", "-200")
	if err != nil {
		return "", err
	}
	newest, err := strconv.ParseInt(log[1], 10, 64)
	if err != nil {
		return "", err
	}
	for i := 2; i < len(log); i += 2 {
		at, err := strconv.ParseInt(log[i+1], 10, 64)
		if err != nil {
			return "", err
		}
		if time.Duration(newest-at)*time.Second >= landingSpan {
			return log[i], nil
		}
	}
	return log[len(log)-2], nil
}

// changedFiles returns the files that differ between a commit and the working tree, new ones included.
func changedFiles(base string) ([]string, error) {
	differ, err := git("diff", "--name-only", "--no-renames", base)
	if err != nil {
		return nil, err
	}
	fresh, err := git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := slices.Concat(differ, fresh)
	slices.Sort(files)
	return slices.Compact(files), nil
}

func (c change) size() string {
	if len(c.files) == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", len(c.files))
}

// touches returns the first file of the change that is an input of a suite; "": none is.
func (c change) touches(in *inputSet) string {
	if c.unknown {
		return "a change that is not known"
	}
	if i := slices.IndexFunc(c.files, in.has); i >= 0 {
		return c.files[i]
	}
	return ""
}
