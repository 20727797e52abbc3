// Command gate decides which suites of tests a change needs, and runs them. .ci/run calls `gate run`, make nightly calls
// `gate nightly`; suites.go has the list of suites.
//
// The gate runs the suites of every change, and those others that the change touches and that are short enough. All others run at
// night, and what came of them is recorded in a file of the repository (.ci/nightly.json). The gate fails if the change touches a suite
// whose record is red or too old, so that nobody ignores the night.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const usage = `usage: gate run              run what the change needs, and check the records of what it touches
       gate list             print the suites, what the change touches, and the records
       gate nightly [SUITE]  run the suites (all, or those named) whose record is not of these sources, and record them

The change is what comes after -base: $GATE_BASE, or else the commit where HEAD left origin/main, or else the last one that
is three hours older than HEAD.
`

func main() {
	base := flag.String("base", os.Getenv("GATE_BASE"), "the `commit` that the change starts from")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()

	if err := gate(flag.Arg(0), *base, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func gate(command, base string, args []string) error {
	records, err := readRecords(recordFile)
	if err != nil {
		return err
	}
	packages, err := loadGraph()
	if err != nil {
		return err
	}
	switch {
	case command == "nightly":
		return nightly(args[1:], packages, records)
	case (command == "run" || command == "list") && len(args) == 1:
	default:
		flag.Usage()
		os.Exit(2)
	}

	c, err := changeSince(base)
	if err != nil {
		fmt.Printf("gate: %v\ngate: the change is not known, so every suite counts as touched\n", err)
		c = change{unknown: true}
	} else {
		fmt.Printf("gate: the change is what came after %s: %s\n", c.base, c.size())
	}
	if command == "list" {
		return list(c, packages, records)
	}
	return run(c, packages, records)
}

// git runs git in the repository and returns the lines that it prints.
func git(args ...string) ([]string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", strings.Join(args, " "), stderrOf(err))
	}
	return strings.Fields(string(out)), nil
}

// stderrOf adds what a failed command printed to its error.
func stderrOf(err error) error {
	if exit, ok := err.(*exec.ExitError); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
