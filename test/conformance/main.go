package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := conformance(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		if errors.Is(err, errUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: conformance build [PART...] | run [FLAG...] PLANE... | rollout [FLAG...] PLANE | readme [FLAG...] PLANE | report FILE")

// settings are what all commands share.
type settings struct {
	root string // of nkp's repository
	work string // where programs, images, clusters and results are kept
	nodes,
	procs int
	overlay   string // of deploy/kubernetes; "": the one named like the plane
	config    string // a file that is nkp's configuration in place of clusterCIDR alone
	family    string // of IP: ipv4, ipv6 or dual
	cni       string // plugs in the pods of plane ovs: ovs-cni; "": this folder's cluster/cni-ovs
	gateway   string // of the pods of plane ovs: node; "": a router
	release   string // of Kubernetes; "": the one in k8s/go.mod
	cluster   string // distinguishes clusters of one plane that run at the same time
	focus     string // a regular expression that the names of tests must match
	smoke     bool
	keep      bool          // leave the cluster running
	record    bool          // of some tests, too
	kill      time.Duration // between two kills of a random nkp; 0: none
	limit     time.Duration // of one run of tests
	from      string        // commit that a rollout begins with
	dist      string        // folder of the release's images
	installed version       // of nkp
}

func conformance(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	s := &settings{root: root}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.StringVar(&s.work, "work", filepath.Join(root, "bin", "conformance"), "folder for programs, images, clusters and results: 12 GB")
	f.IntVar(&s.nodes, "nodes", 3, "nodes of the cluster")
	f.IntVar(&s.procs, "procs", 3, "tests that run at a time")
	f.StringVar(&s.family, "ip-family", "ipv4", "address families of the cluster: ipv4, ipv6, or dual, where IPv4 comes first")
	f.StringVar(&s.overlay, "overlay", "", "overlay of deploy/kubernetes (default: the one named like the plane)")
	f.StringVar(&s.config, "config", "", "file with nkp's configuration (default: clusterCIDR, and nkp's defaults)")
	f.StringVar(&s.cni, "cni", "", "CNI plugin of plane ovs: ovs-cni, the one of the Network Plumbing Working Group (default: one of the suite's own)")
	f.StringVar(&s.gateway, "gateway", "", "the pods' gateway in plane ovs: node, at the bridge's LOCAL port (default: a router behind the uplink)")
	f.StringVar(&s.release, "kubernetes", "", "release of Kubernetes that is built, or runs: 1.36 (default: the one of k8s/go.mod)")
	f.StringVar(&s.cluster, "cluster", "", "a name for the cluster, so that several of a plane can run at the same time")
	f.StringVar(&s.focus, "focus", "", "only the tests whose names match a regular expression, such as 'Traffic Distribution'")
	f.BoolVar(&s.smoke, "smoke", false, "only the smoke tests")
	f.BoolVar(&s.record, "record", false, "record a run of -smoke or -focus, too, as a column of its own")
	f.BoolVar(&s.keep, "keep", false, "leave the cluster running")
	f.DurationVar(&s.kill, "kill", 0, "kill -9 nkp on a random node this often while the tests run")
	f.DurationVar(&s.limit, "limit", 2*time.Hour, "time limit of a plane's tests")
	f.StringVar(&s.dist, "dist", filepath.Join(root, "dist"), "folder of the images that readme installs: make images VERSION=v0.1.0")
	f.StringVar(&s.from, "from", firstRelease, "commit that a rollout begins with and ends with")
	if err := f.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w; %w", err, errUsage)
	}
	if !slices.Contains(ipFamilies, s.family) {
		return fmt.Errorf("-ip-family: %q is none of %q; %w", s.family, ipFamilies, errUsage)
	}
	if s.work, err = filepath.Abs(s.work); err != nil {
		return err
	}
	if !slices.Contains(releases, s.release) {
		return fmt.Errorf("-kubernetes: %q is none of %q; %w", s.release, releases, errUsage)
	}
	if s.gateway != "" && (s.gateway != "node" || s.family != "ipv4") {
		return fmt.Errorf("-gateway: must be node, in a cluster of the family ipv4; %w", errUsage)
	}
	if s.cni != "" && s.cni != "ovs-cni" {
		return fmt.Errorf("-cni: %q is not ovs-cni; %w", s.cni, errUsage)
	}
	if s.focus != "" && s.smoke {
		return fmt.Errorf("-focus and -smoke exclude each other; %w", errUsage)
	}
	switch args[0] {
	case "build":
		return s.build(ctx, f.Args())
	case "run":
		return s.run(ctx, f.Args())
	case "rollout":
		if f.NArg() != 1 {
			return errUsage
		}
		return s.rollout(ctx, f.Arg(0))
	case "readme":
		if f.NArg() != 1 {
			return errUsage
		}
		return s.readme(ctx, f.Arg(0))
	case "load": // in the pods of a rollout's clients
		return runLoad(ctx, f.Args())
	case "report":
		if f.NArg() != 1 {
			return errUsage
		}
		return s.report(f.Arg(0))
	}
	return errUsage
}

// run runs the tests in each plane, one cluster after the other. The error says which planes had unexpected results.
func (s *settings) run(ctx context.Context, asked []string) error {
	for _, plane := range asked {
		if !slices.Contains(planes, plane) {
			return fmt.Errorf("%q is none of %q; %w", plane, planes, errUsage)
		}
	}
	if (s.gateway != "" || s.cni != "") && slices.ContainsFunc(asked, func(plane string) bool { return plane != "ovs" }) {
		return fmt.Errorf("-gateway and -cni: only for plane ovs; %w", errUsage)
	}
	list, err := readExpected(expectedText)
	if err != nil {
		return fmt.Errorf("expected.yaml: %w", err)
	}
	var bad []string
	for _, plane := range asked {
		r, err := s.runPlane(ctx, plane)
		if err != nil {
			return fmt.Errorf("%s: %w", plane, err)
		}
		last, err := lastRecord(s.records(), r)
		if err != nil {
			return err
		}
		complaints := append(judge(list, r), lost(last, r)...)
		if s.smoke {
			for _, name := range missing(smoke, r.Results) {
				complaints = append(complaints, "DID NOT RUN: "+name)
			}
		}
		fmt.Printf("%s: %d passed, %d failed, %d skipped in %.0f minutes\n", r.name(), r.count(passed), r.count(failed), r.count(skipped), r.Minutes)
		for _, c := range complaints {
			fmt.Println(c)
		}
		if len(complaints) > 0 {
			bad = append(bad, r.name())
			continue
		}
		if !r.Whole && !s.record {
			continue
		}
		if err := r.write(s.records()); err != nil {
			return err
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("unexpected results in %q: not recorded", bad)
	}
	return nil
}

// variant says what is not as in an ordinary run; "" for one.
func (s *settings) variant() string {
	var parts []string
	if s.smoke {
		parts = append(parts, "smoke tests")
	}
	switch s.family {
	case "ipv6":
		parts = append(parts, "IPv6")
	case "dual":
		parts = append(parts, "dual-stack")
	}
	if s.release != "" {
		parts = append(parts, "Kubernetes "+s.release)
	}
	if s.focus != "" {
		parts = append(parts, "only "+s.focus)
	}
	if s.cni != "" {
		parts = append(parts, s.cni)
	}
	if s.gateway != "" {
		parts = append(parts, "the node is the pods' gateway")
	}
	if s.overlay != "" {
		parts = append(parts, "overlay "+s.overlay)
	}
	if s.config != "" {
		parts = append(parts, "configuration "+filepath.Base(s.config))
	}
	if s.kill > 0 {
		parts = append(parts, fmt.Sprintf("nkp killed every %v", s.kill))
	}
	if s.nodes != 3 {
		parts = append(parts, fmt.Sprintf("%d nodes", s.nodes))
	}
	return strings.Join(parts, ", ")
}

// runPlane makes a cluster, runs the tests in it, and returns the results.
func (s *settings) runPlane(ctx context.Context, plane string) (*record, error) {
	c := &cluster{s, plane}
	if err := c.up(ctx); err != nil {
		return nil, errors.Join(err, s.down(c))
	}
	r := &record{Plane: plane, Variant: s.variant(), IPFamily: s.family, Overlay: s.overlay, Whole: !s.smoke && s.focus == "", Date: time.Now().UTC(), Nodes: s.nodes, Versions: c.versions(ctx)}
	stop := c.disturb(ctx)
	err := c.test(ctx)
	stop()
	r.Minutes = math.Round(time.Since(r.Date).Minutes())
	var read error
	r.Results, read = readResults(c.reports())
	if read != nil {
		return nil, errors.Join(read, err, s.down(c)) // err is why
	}
	if err != nil && (ctx.Err() != nil || r.count(failed) == 0) { // otherwise it says that tests have failed
		return nil, errors.Join(fmt.Errorf("the tests ended early: %w", err), s.down(c))
	}
	return r, s.down(c)
}

// down ends a cluster, unless it is to be kept.
func (s *settings) down(c *cluster) error {
	if s.keep {
		fmt.Printf("%s is left running; CLUSTER=%s %s %s ends it\n", c.plane, s.cluster, filepath.Join(s.root, "test/conformance/cluster/down"), c.plane)
		return nil
	}
	return c.down()
}

// testsPage has the outcome of each test, among the records.
const testsPage = "results/tests.md"

// report writes the page of results to file, and the one of each test beside the records.
func (s *settings) report(file string) error {
	records, err := readRecords(s.records())
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return fmt.Errorf("no plane has results in %s", s.records())
	}
	list, err := readExpected(expectedText)
	if err != nil {
		return fmt.Errorf("expected.yaml: %w", err)
	}

	var page, tests bytes.Buffer
	return errors.Join(
		writeReport(&page, records, list),
		writeTests(&tests, records, list),
		os.WriteFile(file, page.Bytes(), 0o644),
		os.WriteFile(filepath.Join(filepath.Dir(s.records()), testsPage), tests.Bytes(), 0o644),
	)
}
