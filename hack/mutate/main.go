// Command mutate breaks one line of the product at a time and runs the tests of the gate, to see whether one fails.
//
//	go run ./hack/mutate                       20 mutations, an hour or two
//	go run ./hack/mutate -n 100 -seed 7        those of that seed; goes on where it was ended (-out)
//	go run ./hack/mutate -list -n 5            only prints them
//
// The tree is not touched: the compiler gets the changed file by -overlay. The packages that import the changed one are
// tested first, then packets. A mutation that does not compile is replaced by the next; one that no test notices survives,
// and either changes nothing that matters or wants a test.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// result is a line of the file -out.
type result struct {
	Mutation string
	KilledBy string // package and test; "": it survived
	Took     string
}

// unit is what a mutation is drawn from, where no arguments say otherwise.
var unit = []string{"./k8s/...", "./pipeline/...", "./ofctrl/...", "./internal/bridge", "./fallback/..."}

// packets are the packages whose tests start nkp and take minutes, in the order of time.
var packets = []string{"./test/semantics", "./fallback", "./test/packets"}

func main() {
	log.SetFlags(0)
	n := flag.Int("n", 20, "how many mutations")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the draw")
	out := flag.String("out", "bin/mutations.jsonl", "results, one a line; what is there already is not run again")
	quick := flag.Bool("quick", false, "without the packet tests; what survives is not recorded, so that a run without -quick tries it again")
	list := flag.Bool("list", false, "print the mutations and run nothing")
	flag.Parse()
	if flag.NArg() > 0 {
		unit = flag.Args()
	}
	fmt.Printf("seed %d\n", *seed)
	if err := run(*n, *seed, *out, *list, *quick); err != nil {
		log.Fatal("mutate: ", err)
	}
}

func run(n int, seed uint64, out string, list, quick bool) error {
	all, err := candidates(unit)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	done, err := read(out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nkp-mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	killed, survived := 0, 0
	for _, m := range all {
		if killed+survived == n {
			break
		}
		if list {
			fmt.Println(m)
			survived++
			continue
		}
		r, known := done[m.String()]
		if !known {
			begin := time.Now()
			by, compiles, err := m.try(dir, quick)
			if err != nil {
				return err
			}
			if !compiles {
				continue
			}
			r = result{m.String(), by, time.Since(begin).Round(time.Second).String()}
			if quick && by == "" {
				survived++
				fmt.Printf("left      %s (%s)\n", r.Mutation, r.Took)
				continue
			}
			if err := add(out, r); err != nil {
				return err
			}
		}
		if r.KilledBy == "" {
			survived++
			fmt.Printf("SURVIVED  %s (%s)\n", r.Mutation, r.Took)
		} else {
			killed++
			fmt.Printf("killed    %s by %s (%s)\n", r.Mutation, r.KilledBy, r.Took)
		}
	}
	if !list {
		fmt.Printf("%d of %d mutations killed\n", killed, killed+survived)
	}
	return nil
}

// try runs the tests on a mutation until one fails, and returns which. If quick, it runs no packet tests.
func (m mutation) try(dir string, quick bool) (killedBy string, compiles bool, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", false, err
	}
	if _, ok := goTool("build", "-overlay", overlay, m.pkg); !ok {
		return "", false, nil
	}
	importing, err := importers(m.pkg)
	if err != nil {
		return "", true, err
	}

	for _, stage := range [][]string{{m.pkg}, importing} {
		if by := failing(overlay, stage); by != "" {
			return by, true, nil
		}
	}
	if quick {
		return "", true, nil
	}

	nkp := filepath.Join(dir, "nkp")
	if text, ok := goTool("build", "-overlay", overlay, "-o", nkp, "."); !ok {
		return "", true, fmt.Errorf("go build: %s", text)
	}
	if err := os.Setenv("NKP_BINARY", nkp); err != nil {
		return "", true, err
	}
	for _, pkg := range packets {
		if by := failing(overlay, []string{pkg}); by != "" {
			return by, true, nil
		}
	}
	return "", true, nil
}

// failing runs the tests of packages and returns the first that fails; "": none.
func failing(overlay string, packages []string) string {
	if len(packages) == 0 {
		return ""
	}
	// -count=1: go test may have a result of the same test with another nkp, which it does not know of.
	args := []string{"test", "-overlay", overlay, "-vet=off", "-failfast", "-count=1", "-p", "2", "-timeout", "10m"}
	if text, ok := goTool(append(args, packages...)...); !ok {
		return firstFailure(text)
	}
	return ""
}

// overlay writes the changed file and the list of -overlay into dir.
func (m mutation) overlay(dir string) (string, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "changed.go")
	text = slices.Concat(text[:m.from], []byte(m.text), text[m.to:])
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}

// importers returns the packages of the module with tests that import pkg, straight or not, or whose tests do; without
// those of packets.
func importers(pkg string) (out []string, err error) {
	text, ok := goTool("list", "-test", "-f", `{{.ForTest}} {{.ImportPath}} {{join .Deps " "}}`, "./...")
	if !ok {
		return nil, fmt.Errorf("go list: %s", text)
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		test, isTest := strings.CutSuffix(f[0], ".test")
		if !isTest || test == pkg || !slices.ContainsFunc(f[1:], func(dep string) bool { return dep == pkg }) {
			continue
		}
		slow := slices.ContainsFunc(packets, func(p string) bool { return strings.HasSuffix(test, p[1:]) })
		if !slow && !strings.HasSuffix(test, "/test/fallback") && !strings.HasSuffix(test, "/test/faults") {
			out = append(out, test)
		}
	}
	return out, nil
}

var failure = regexp.MustCompile(`(?m)^(?:--- FAIL: (\S+)|panic: (.*)|FAIL\s+(\S+))`)

// firstFailure names the first test, and its package, that the output of go test says has failed.
func firstFailure(text string) string {
	var test, pkg string
	for _, f := range failure.FindAllStringSubmatch(text, -1) {
		if test == "" {
			test = f[1] + f[2]
		}
		if pkg = f[3]; pkg != "" {
			break
		}
	}
	if by := strings.TrimSpace(pkg + " " + test); by != "" {
		return by
	}
	return "an error that names no test"
}

// goTool runs the repository's go command. ok is false if it ends with an error.
func goTool(args ...string) (output string, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, ".ci/go", args...).CombinedOutput()
	return string(out), err == nil
}

func read(file string) (map[string]result, error) {
	done := map[string]result{}
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return done, nil
	}
	for line := range bytes.Lines(text) {
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		done[r.Mutation] = r
	}
	return done, err
}

func add(file string, r result) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(r)
}
