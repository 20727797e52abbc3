//go:build linux

package fallback_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A test that sends packets runs the Plane in a process of its own inside the bed's node, as on a real node: the test
// binary starts itself again and is spoken to in lines of JSON.

// childEnv tells the test binary that it is such a process; its value is childOptions.
const childEnv = "NKP_FALLBACK_CHILD"

type childOptions struct {
	serving.Config
	Backend       restore.Backend
	SyncPeriod    time.Duration
	Tracker       k8s.Options
	AffinityLimit int
	Families      []k8s.Family
	CountTraffic  bool
	// LocalnetFile stands for the volume of a container that has route_localnet; "": none.
	LocalnetFile string
	// LockDir is fallback's; launch sets it.
	LockDir string
}

type request struct {
	Op   string // update, status, diff, plan, cleanup, generate, replace, change, heap, stop, counters, why not nftables
	Path string // of manifests
	N    int    // generate: Services; replace, change: the one whose endpoint is another
	To   string // replace, change: the other endpoint
}

type reply struct {
	Err      string
	Text     string
	Status   fallback.Status
	Counters map[string]k8s.Counters // by PortName.ID
	Cost     cost
}

// cost is what a Plane has done.
type cost struct {
	Transactions, Rules int
	Allocated           uint64 // bytes
}

func costOf(p *fallback.Plane) cost {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := p.Detail().Families[0]
	return cost{s.Transactions, s.Rules, m.TotalAlloc}
}

func (c cost) since(before cost) cost {
	return cost{c.Transactions - before.Transactions, c.Rules - before.Rules, c.Allocated - before.Allocated}
}

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(childEnv); ok {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(text string) error {
	var o childOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	fallback.SetLockDir(o.LockDir)
	if o.LocalnetFile != "" {
		fallback.SetLocalnetFile(o.LocalnetFile)
	}
	var p *fallback.Plane
	synced := make(chan cost, 1) // has a value once a change was programmed that nothing had been programmed after
	var hooks fallback.Hooks
	hooks.Synced = func(dataplane.Sync) {
		select {
		case synced <- costOf(p):
		default:
		}
	}
	both := fallback.Options{
		Hooks: hooks, Config: o.Config, SyncPeriod: o.SyncPeriod, Families: o.Families,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	var err error
	if o.Backend == onNFTables {
		p, err = nftables.New(nftables.Options{Options: both, Settings: nftables.Settings{AffinityLimit: o.AffinityLimit, CountTraffic: o.CountTraffic}})
	} else {
		p, err = iptables.New(iptables.Options{Options: both, Backend: string(o.Backend)})
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	go func() { // ends with the process, or by the request stop
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "run:", err)
			os.Exit(1)
		}
	}()
	world := world{Tracker: k8s.NewTracker(o.Tracker), known: map[k8s.Ref]bool{}}
	var last *k8s.Model
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var req request
		if err := in.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var r reply
		var err error
		switch req.Op {
		case "update":
			err = world.update(p, req.Path)
		case "status":
			r.Status = p.Detail()
		case "diff":
			r.Text, err = p.Diff(ctx)
		case "plan":
			r.Text = p.Plan()
		case "generate":
			last = shapes.Many(req.N)
			p.Update(last, last.Everything())
		case "replace":
			var to netip.AddrPort
			if to, err = netip.ParseAddrPort(req.To); err == nil {
				p.Update(last, shapes.Replace(last, req.N, to))
			}
		case "change": // replace, and its cost once it is programmed
			select {
			case <-synced:
			default:
			}
			before := costOf(p)
			p.Update(last, shapes.Replace(last, req.N, netip.MustParseAddrPort(req.To)))
			r.Cost = (<-synced).since(before)
		case "heap": // what is in use
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			r.Cost.Allocated = m.HeapAlloc
		case "stop":
			cancel()
			<-ended
		case "counters": // of now
			p.ForgetCounters()
			var by map[k8s.PortName]k8s.Counters
			by, _, err = p.Counters(ctx)
			r.Counters = map[string]k8s.Counters{}
			for n, c := range by {
				r.Counters[n.ID()] = c
			}
		case "why not nftables":
			r.Text = (&agent.Settings{Fallback: both}).Choosing(o.Scope).NotNFTables(ctx)
		case "cleanup":
			if o.Backend == onNFTables {
				var n int
				n, err = nftables.Cleanup(nil)
				r.Text = fmt.Sprintf("%d tables", n)
				break
			}
			var n iptables.Removed
			n, err = iptables.Cleanup(ctx, iptables.CleanupOptions{TakeLocalnet: nftables.TakeLocalnet})
			r.Text = fmt.Sprintf("%+v", n)
		}
		if err != nil {
			r.Err = err.Error()
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

// world is what a Plane was told of the cluster.
type world struct {
	*k8s.Tracker
	known map[k8s.Ref]bool // the objects
}

// update hands the Plane what is new in a file of manifests.
func (w world) update(p *fallback.Plane, path string) error {
	manifests := manifest.Load(path)
	if err := manifests.Err(); err != nil {
		return err
	}
	there := map[k8s.Ref]bool{}
	for _, c := range manifests.Objects {
		there[c.Ref], w.known[c.Ref] = true, true
	}
	for ref := range w.known {
		if !there[ref] {
			w.Apply([]k8s.Change{{Op: k8s.Delete, Ref: ref}})
			delete(w.known, ref)
		}
	}
	w.Apply(manifests.Objects)
	p.Update(w.Flush())
	return nil
}

// process is a Plane that runs in a bed's node.
type process struct {
	t    *testing.T
	bed  *testbed.Bed
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe *os.File      // that out reads from
	log  string        // the file that it logs to
	done chan struct{} // closed when it has ended
}

// start runs a Plane with Services from manifests and waits until all is programmed.
func start(t *testing.T, b *testbed.Bed, o childOptions, manifests string) *process {
	t.Helper()
	p := launch(t, b, o)
	p.sync(manifests)
	return p
}

// launch starts the process and nothing else.
func launch(t *testing.T, b *testbed.Bed, o childOptions) *process {
	t.Helper()
	return launchAs(t, b, o, os.Args[0])
}

// launchAs is launch by a command that ends in the test binary.
func launchAs(t *testing.T, b *testbed.Bed, o childOptions, argv ...string) *process {
	t.Helper()
	o.LockDir = b.RunDir
	text, err := json.Marshal(o)
	must(t, err)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "XTABLES_LOCKFILE="+lockFile(b))
	log, err := os.CreateTemp(t.TempDir(), "plane")
	must(t, err)
	cmd.Stderr = log
	p := &process{t: t, bed: b, cmd: cmd, log: log.Name(), done: make(chan struct{})}
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	p.out, p.pipe = bufio.NewReader(out), out.(*os.File)
	must(t, b.Node.Start(cmd))
	t.Cleanup(func() {
		p.kill()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			lines := strings.Split(string(text), "\n")
			t.Logf("the end of the plane's log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
		_ = log.Close()
	})
	return p
}

// lockFile is the lock of the legacy back end, one for each bed.
func lockFile(b *testbed.Bed) string { return filepath.Join(b.RunDir, "xtables.lock") }

// kill ends the process as kill -9 does.
func (p *process) kill() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		close(p.done)
	}
}

func (p *process) ask(r request) reply {
	p.t.Helper()
	a := p.try(r)
	if a.Err != "" {
		p.t.Fatalf("%s: %s", r.Op, a.Err)
	}
	return a
}

// try is ask for what may fail.
func (p *process) try(r request) reply {
	p.t.Helper()
	must(p.t, json.NewEncoder(p.in).Encode(r))
	_ = p.pipe.SetReadDeadline(time.Now().Add(wait.Limit))
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("%s: the plane has ended, or does not answer: %v", r.Op, err)
	}
	var a reply
	must(p.t, json.Unmarshal(line, &a))
	return a
}

// update hands over manifests.
func (p *process) update(manifests string) {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "manifests.yaml")
	must(p.t, os.WriteFile(path, []byte(manifests), 0o644))
	p.ask(request{Op: "update", Path: path})
}

// sync hands over manifests and waits until what is installed is what they ask for.
func (p *process) sync(manifests string) {
	p.t.Helper()
	p.update(manifests)
	p.settle()
}

// settle waits until what is installed is what should be.
func (p *process) settle() {
	p.t.Helper()
	wait.NoError(p.t, "the installed rules to be those of the model", func() error {
		families := p.status().Families
		if len(families) == 0 || slices.ContainsFunc(families, func(f fallback.FamilyStatus) bool { return !f.InStep }) {
			return fmt.Errorf("not in step: %+v", families)
		}
		if diff := p.ask(request{Op: "diff"}).Text; diff != "" { // it takes long
			return errors.New(diff)
		}
		return nil
	})
}

func (p *process) status() fallback.Status { return p.ask(request{Op: "status"}).Status }

func (p *process) ipv4() fallback.FamilyStatus { return p.status().Families[0] }

// until waits for a state of IPv4.
func (p *process) until(what string, ok func(fallback.FamilyStatus) bool) {
	p.t.Helper()
	wait.NoError(p.t, what, func() error {
		if f := p.ipv4(); !ok(f) {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

// logged returns how often its log has a text.
func (p *process) logged(text string) int {
	p.t.Helper()
	log, err := os.ReadFile(p.log)
	must(p.t, err)
	return strings.Count(string(log), text)
}

// repairs returns how often a family has found that another program changed the rules.
func (p *process) repairs() (n int) {
	p.t.Helper()
	for _, f := range p.status().Families {
		n += f.Repairs
	}
	return n
}

// repaired does something to the rules and waits until it is undone.
func (p *process) repaired(what string, do func()) {
	p.t.Helper()
	before := p.repairs()
	do()
	wait.For(p.t, "a repair after "+what, func() bool { return p.repairs() > before })
	p.settle()
}

// audited waits until each family has read everything back twice: whatever was there before has been seen.
func (p *process) audited() {
	p.t.Helper()
	before := p.status().Families
	wait.For(p.t, "two read-backs that find everything as it was installed", func() bool {
		for i, f := range p.status().Families {
			if f.Audits < before[i].Audits+2 {
				return false
			}
		}
		return true
	})
}
