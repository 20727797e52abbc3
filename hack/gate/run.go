package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// run runs the suites that the change needs, all of them although one fails, and checks the records of those it touches.
func run(c change, packages graph, r records) error {
	begun := time.Now()
	var times, problems []string
	for _, s := range suites {
		in, err := s.inputs(packages)
		if err != nil {
			return err
		}
		file := c.touches(in)
		switch {
		case s.when == always:
		case file == "":
			continue
		case s.when == touched:
			fmt.Printf("== %s is touched by %s\n", s.target, file)
		default:
			if problem := r.problem(s.target, !c.unknown); problem != "" {
				problems = append(problems, problem)
			}
			continue
		}

		fmt.Printf("== make %s (after %s)\n", s.target, minutes(time.Since(begun)))
		start := time.Now()
		if err := runMake(os.Stdout, s.target); err != nil {
			problems = append(problems, fmt.Sprintf("make %s: %v", s.target, err))
		}
		times = append(times, fmt.Sprintf("%s %s", s.target, minutes(time.Since(start))))
	}

	fmt.Printf("== %s after %s: %s\n", result(problems), minutes(time.Since(begun)), strings.Join(times, ", "))
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\ngate: "))
	}
	return nil
}

func result(problems []string) string {
	if len(problems) > 0 {
		return failed
	}
	return passed
}

// list prints the suites.
func list(c change, packages graph, r records) error {
	for _, s := range suites {
		in, err := s.inputs(packages)
		if err != nil {
			return err
		}
		file := c.touches(in)
		why, last := s.about, ""
		if file != "" {
			why += "; touched by " + file
		}
		if s.when == atNight {
			last = r[s.target].Result
			if problem := r.problem(s.target, !c.unknown); problem != "" {
				last = problem
			}
		}
		fmt.Printf("%-18s %-13s %s; %s\n", s.target, s.when, why, last)
	}
	return nil
}

// nightly runs the suites of the night, each alone, one after the other, and records each as it ends. A suite whose record is of
// the same sources is left out, so that a run that was interrupted goes on where it was.
func nightly(targets []string, packages graph, r records) error {
	for _, t := range targets {
		if s, ok := suiteNamed(t); !ok || s.when == always {
			return fmt.Errorf("%s is no suite of the night; `gate list` prints them", t)
		}
	}

	dirty, err := git("status", "--porcelain", "--", ":!"+recordFile)
	if err != nil {
		return err
	}
	if len(dirty) > 0 {
		return errors.New("there are uncommitted changes; commit them first, because a record names the commit that was tested")
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return err
	}

	var red []string
	for _, s := range suites {
		if s.when == always || len(targets) > 0 && !slices.Contains(targets, s.target) {
			continue
		}
		last := r[s.target]
		if last.Result == passed && len(targets) == 0 {
			in, err := s.inputs(packages)
			if err != nil {
				return err
			}
			// The record's commit may not be in this history any more: then the suite runs.
			since, err := changedFiles(last.Commit)
			if err == nil && (change{base: last.Commit, files: since}).touches(in) == "" {
				fmt.Printf("== %s passed at %.10s, and nothing that it tests has changed since\n", s.target, last.Commit)
				continue
			}
		}
		rec, err := runAtNight(s, head[0])
		if err != nil {
			return err
		}
		if rec.Result == failed {
			red = append(red, s.target)
		}
		r[s.target] = rec
		if err := r.write(recordFile); err != nil {
			return err
		}
	}
	if len(red) > 0 {
		return errors.New("failed: " + strings.Join(red, ", "))
	}
	return nil
}

// runAtNight runs one suite, with its output in bin/nightly.
func runAtNight(s suite, commit string) (record, error) {
	logName := filepath.Join("bin", "nightly", s.target+".log")
	if err := os.MkdirAll(filepath.Dir(logName), 0o755); err != nil {
		return record{}, err
	}
	log, err := os.Create(logName)
	if err != nil {
		return record{}, err
	}
	defer log.Close()

	fmt.Printf("== make %s, its output in %s\n", s.target, logName)
	start := time.Now()
	runErr := runMake(log, s.target, "FUZZTIME=1m", "NKP_NIGHTLY=1")
	rec := record{Commit: commit, Result: passed, Seconds: int(time.Since(start).Seconds()), At: start.UTC().Truncate(time.Second)}
	if runErr != nil {
		rec.Result = failed
	}
	fmt.Printf("== %s %s after %s\n", s.target, rec.Result, minutes(time.Since(start)))
	return rec, nil
}

// runMake runs a target of the Makefile. Variables are those of make and of the environment.
func runMake(out io.Writer, target string, variables ...string) error {
	cmd := exec.Command("make", append([]string{"--no-print-directory", target}, variables...)...)
	cmd.Env = append(cmd.Environ(), variables...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

func minutes(d time.Duration) string {
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
