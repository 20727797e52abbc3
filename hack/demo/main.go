//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const usage = `demo shows nkp on a private Open vSwitch: the guestbook's Services, their pods as network namespaces, requests to
them, and what changes when a pod goes away. It needs root, takes some seconds, and cleans up after itself.

Usage: demo [flags]        (or: make demo, KEEP=1 make demo)

  -nkp FILE         the nkp binary (default bin/nkp)
  -manifests FILE   the guestbook's manifest; a copy of it is used (default examples/guestbook.yaml)
  -requests N       requests per bar chart (default 300)
  -keep             go on running after the demo, to look around (default: KEEP=1 in the environment)
  -h, -help         this text

NO_COLOR=1 turns colours off. Exit status: 0, 1 if a step failed, 2 for a wrong command line.
`

// config is the command line.
type config struct {
	nkp      string // absolute
	asGiven  string // nkp as the command line has it
	manifest string
	requests int
	keep     bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v; see demo -h\n", err)
		return 2
	}
	if err := check(&c); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	out := newScreen(stdout)
	if err := show(ctx, c, out); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.nkp, "nkp", "bin/nkp", "")
	f.StringVar(&c.manifest, "manifests", "examples/guestbook.yaml", "")
	f.IntVar(&c.requests, "requests", 300, "")
	f.BoolVar(&c.keep, "keep", os.Getenv("KEEP") == "1", "")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if c.requests < 30 || c.requests > 100000 {
		return c, fmt.Errorf("-requests %d is not between 30 and 100000", c.requests)
	}
	return c, nil
}

// check returns what is missing before anything is built, and what to do about it.
func check(c *config) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and the switch need root; run as root: sudo make demo")
	}
	var err error
	c.asGiven = c.nkp
	if c.nkp, err = filepath.Abs(c.nkp); err != nil {
		return err
	}
	if _, err := os.Stat(c.nkp); err != nil {
		return fmt.Errorf("no nkp binary: %w; build it: make build", err)
	}
	if _, err := os.Stat(c.manifest); err != nil {
		return fmt.Errorf("no manifest: %w; run this in the source's top directory, or give -manifests", err)
	}
	if err := testbed.Available(); err != nil {
		return fmt.Errorf("%w; install what is missing: make deps", err)
	}
	return nil
}
