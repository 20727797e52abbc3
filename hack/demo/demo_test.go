//go:build linux

package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const manifest = "../../examples/guestbook.yaml"

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// runDemo runs the demo with standard output going to out. It may be called from any goroutine: if nkp cannot be built, it returns -1.
func runDemo(ctx context.Context, t *testing.T, out io.Writer, flags ...string) int {
	t.Helper()
	bin, err := testbed.NKP()
	if err != nil {
		t.Error(err)
		return -1
	}
	var stderr strings.Builder
	code := run(ctx, append([]string{"-nkp", bin, "-manifests", manifest, "-keep=false"}, flags...), out, &stderr)
	if stderr.Len() > 0 {
		t.Logf("standard error:\n%s", stderr.String())
	}
	return code
}

// TestStory runs the demo and looks for the facts it has to show, in their order.
func TestStory(t *testing.T) {
	testbed.Require(t)
	t.Parallel()
	var out strings.Builder
	code := runDemo(t.Context(), t, &out)
	t.Logf("%s", out.String())
	if code != 0 {
		t.Fatalf("exit status %d", code)
	}
	rest := out.String()
	for _, want := range []string{
		`"nkp diff" finds the switch in step after [0-9.]+ m?s: [1-9]\d* flows, [1-9]\d* groups`,
		`default/frontend +NodePort +172\.16\.92\.224 +80:30784/TCP +172\.18\.0\.20:80 +other node`,
		`default/redis-slave +ClusterIP +172\.16\.67\.204 +6379/TCP`,
		`7bt7k +this node +#+ +\d+ +\d+ %\n.*v7889 +this node +#+ +\d+ +\d+ %\n.*nbmvp +other node +#+ +\d+ +\d+ %\n`,
		`saw them come from 172\.18\.1\.100`,
		`192\.168\.3\.233:30784/ answered by 3 pods`,
		`redis-master +172\.16\.155\.140:6379 answered by redis-master-`,
		`redis-slave +172\.16\.67\.204:6379 answered by redis-slave-`,
		`360 connections to frontend were made, and 360 are counted`,
		`candidate: 172\.18\.1\.52:6379 on this node`,
		`verdict: deliver`,
		`in step [0-9.]+ m?s after the edit`,
		`\d+ requests meanwhile, none failed`,
		`open since before, still works`,
		`7bt7k +this node +#+ +\d+ +\d+ %\n.*nbmvp +other node +#+ +\d+ +\d+ %\n`,
		`requests answered while no nkp runs`,
		`finds no difference, and nothing was written again`,
		`connection refused after [0-9.]+ m?s`,
		`answered again [0-9.]+ m?s after the edit`,
		`in step +the switch holds what it should`,
		`all cleaned up\. The demo took`,
	} {
		at := regexp.MustCompile(want).FindStringIndex(strings.ReplaceAll(rest, "█", "#"))
		if at == nil {
			t.Fatalf("no %q in what follows:\n%s", want, rest)
		}
		rest = strings.ReplaceAll(rest, "█", "#")[at[1]:]
	}
	bin, err := testbed.NKP()
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.ReplaceAll(out.String(), bin, "bin/nkp") // as make demo shows it, in no matter which folder this test runs
	for line := range strings.SplitSeq(shown, "\n") {
		if n := len([]rune(line)); n > 130 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}

// TestKeep keeps the demo running, beside the one of TestStory, and tries the commands that it names.
func TestKeep(t *testing.T) {
	nightly.Only(t, "in the gate TestStory runs the demo; this adds -keep and the commands that it names")
	testbed.Require(t)
	t.Parallel()
	bin, err := testbed.NKP()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context()) // every step of the demo has a limit of its own
	defer stop()
	r, w := io.Pipe()
	var all strings.Builder // written by reader until it is done
	kept, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when w is closed
		defer close(done)
		var once sync.Once
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			all.Write(buf[:n])
			if strings.Contains(all.String(), "\n  kill ") {
				once.Do(func() { close(kept) })
			}
			if err != nil {
				return
			}
		}
	}()
	code := make(chan int, 1)
	go func() { // ends when ctx does
		code <- runDemo(ctx, t, w, "-keep", "-requests", "60")
		w.Close()
	}()
	select {
	case <-kept:
	case <-done:
		t.Fatalf("the demo ended:\n%s", all.String())
	}
	text := all.String() // the demo says nothing more until it is stopped
	commands := strings.ReplaceAll(text[strings.Index(text, "  # where the demo"):], "\\\n", "")
	vars := regexp.MustCompile(`D=(/\S+) N='.*'`).FindStringSubmatch(commands)
	dir := vars[1]
	tried := 0
	for line := range strings.Lines(commands) {
		line = strings.TrimSpace(line)
		switch word, _, _ := strings.Cut(line, " "); filepath.Base(word) {
		case filepath.Base(bin), "ovs-ofctl", "$N":
		case "nsenter":
			if strings.HasSuffix(line, " bash") {
				continue
			}
		default:
			continue
		}
		if tried++; strings.Contains(line, " ui ") {
			line = "timeout --preserve-status -s INT 2 " + line
		}
		out, err := exec.Command("bash", "-ec", vars[0]+"; "+line).CombinedOutput()
		if err != nil || strings.Contains(line, "nsenter") && !strings.Contains(string(out), "frontend-") {
			t.Errorf("%s\n%v: %s", line, err, out)
		}
	}
	if tried != 8 {
		t.Errorf("tried %d commands, not 8, of:\n%s", tried, commands)
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("exit status %d", c)
	}
	<-done
	if _, err := os.Stat(dir); err == nil || !strings.Contains(all.String(), "all cleaned up") {
		t.Errorf("%s: %v\n%s", dir, err, all.String())
	}
}

// TestInterrupted stops the demo in the middle.
func TestInterrupted(t *testing.T) {
	testbed.Require(t)
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := &watcher{word: "answered while no nkp", found: stop}
	if code := runDemo(ctx, t, out); code != 1 || strings.Contains(out.text.String(), "took") {
		t.Errorf("exit status %d\n%s", code, out.text.String())
	}
}

// watcher calls found when a word was written. It is used by one goroutine.
type watcher struct {
	word  string
	found func()
	text  strings.Builder
}

func (w *watcher) Write(b []byte) (int, error) {
	n, err := w.text.Write(b)
	if strings.Contains(w.text.String(), w.word) {
		w.found()
	}
	return n, err
}

func TestBrokenManifest(t *testing.T) {
	testbed.Require(t)
	t.Parallel()
	bin, err := testbed.NKP()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "name: frontend,", "name: backend,")), 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	if code := run(t.Context(), []string{"-nkp", bin, "-manifests", file, "-keep=false"}, io.Discard, &stderr); code != 1 {
		t.Errorf("exit status %d", code)
	}
	if !strings.Contains(stderr.String(), "no ClusterIP default/frontend") {
		t.Errorf("standard error: %s", stderr.String())
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"-h", 0, "Usage: demo"},
		{"--help", 0, "Usage: demo"},
		{"-requests 3", 2, "not between"},
		{"-what", 2, "see demo -h"},
		{"more", 2, `unexpected argument "more"`},
	} {
		var out strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("demo %s: %d %s", c.args, code, out.String())
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	for args, want := range map[string]string{
		"-nkp /nonexistent":              "make build",
		"-nkp . -manifests /nonexistent": "-manifests",
	} {
		var out strings.Builder
		if code := run(t.Context(), strings.Fields(args), &out, &out); code != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("demo %s: %d %s", args, code, out.String())
		}
	}
}

func TestWithoutEndpoint(t *testing.T) {
	b, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	after, line, err := withoutEndpoint(text, "172.18.1.23")
	if err != nil || strings.Contains(after, "172.18.1.23") || strings.Count(after, "\n") != strings.Count(text, "\n")-1 ||
		!strings.HasPrefix(line, "- {addresses: [172.18.1.23]") {
		t.Errorf("%v, line %q", err, line)
	}
	if _, _, err := withoutEndpoint(text, "172.18.1.2"); err == nil {
		t.Error("an endpoint that is not there was removed")
	}
}

func TestCompareInstalled(t *testing.T) {
	const dump = ` cookie=0x6e6b700000000001, duration=1.250s, table=0, n_packets=7, n_bytes=90, priority=1,ip actions=drop
 cookie=0x6e6b700000000002, duration=61.5s, table=3, n_packets=0, n_bytes=0, priority=2,ip actions=drop
`
	a, err := parseFlows("OFPST_FLOW reply (OF1.5) (xid=0x2):\n" + dump)
	if err != nil || len(a) != 2 {
		t.Fatal(a, err)
	}
	b, err := parseFlows(strings.ReplaceAll(dump, "n_packets=7", "n_packets=9"))
	if err != nil {
		t.Fatal(err)
	}
	youngest, err := compareInstalled(installed{flows: a}, installed{flows: b})
	if err != nil || youngest != 1250*time.Millisecond {
		t.Error(youngest, err)
	}
	c, err := parseFlows(strings.ReplaceAll(dump, "priority=2", "priority=3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []installed{{flows: c}, {flows: nil}, {flows: a, groups: map[string]bool{"group_id=1": true}}} {
		if _, err := compareInstalled(installed{flows: a}, other); err == nil {
			t.Errorf("%v passes", other)
		}
	}
}
