package ports

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// listenEnv makes this binary the process that holds ports: it listens at the addresses in it, such as
// "tcp4 0.0.0.0:80,udp6 [::]:53", says so on standard output, and ends with standard input.
const listenEnv = "NKP_TEST_LISTEN"

func TestMain(m *testing.M) {
	if text := os.Getenv(listenEnv); text != "" {
		if err := hold(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func hold(text string) error {
	var held []io.Closer // the garbage collector closes what is not referenced
	for at := range strings.SplitSeq(text, ",") {
		network, addr, _ := strings.Cut(at, " ")
		var c io.Closer
		var err error
		switch {
		case network == "connected":
			c, err = net.Dial("udp4", addr)
		case strings.HasPrefix(network, "udp"):
			c, err = net.ListenPacket(network, addr)
		default:
			c, err = net.Listen(network, addr)
		}
		if err != nil {
			return err
		}
		held = append(held, c)
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadByte()
	runtime.KeepAlive(held)
	return nil
}

// holder is a process that holds ports in a namespace.
type holder struct {
	pid  int
	stop func()
}

// alone puts the test into a network namespace with the addresses 10.0.0.1 and fd00::1.
func alone(t *testing.T) {
	t.Helper()
	testbed.Isolate(t)
	lo, err := netlink.LinkByName("lo")
	for _, text := range []string{"10.0.0.1/32", "fd00::1/128"} {
		var a *netlink.Addr
		if err == nil {
			a, err = netlink.ParseAddr(text)
		}
		if err == nil {
			a.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(lo, a)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	must(t, err)
}

// startHolder starts a process that holds ports, in the namespace of the test.
func startHolder(t *testing.T, listen string) holder {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), listenEnv+"="+listen)
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	must(t, errors.Join(errIn, errOut, cmd.Start()))
	stop := sync.OnceFunc(func() {
		in.Close()
		cmd.Wait()
	})
	t.Cleanup(stop)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("the process that listens says %q", line)
	}
	return holder{cmd.Process.Pid, stop}
}

func TestScan(t *testing.T) {
	alone(t)
	startHolder(t, "tcp4 0.0.0.0:80,tcp6 [::]:81,tcp [::]:82,tcp4 10.0.0.1:83,tcp6 [fd00::1]:84,tcp4 127.0.0.1:85,"+
		"udp4 0.0.0.0:53,udp6 [::]:54,udp [::]:55,udp4 10.0.0.1:56,connected 10.0.0.1:57")
	mine, err := net.Listen("tcp4", "0.0.0.0:99")
	must(t, err)
	defer mine.Close()
	// Connections are no listeners, however many there are.
	for range 50 {
		c, err := net.Dial("tcp4", "10.0.0.1:99")
		must(t, err)
		defer c.Close()
	}
	ls, err := Scan()
	must(t, err)
	var got []string
	for _, l := range ls {
		text := fmt.Sprintf("%s %s", l.Protocol, l.Addr)
		if l.Both {
			text += "+4"
		}
		if l.Inode == 0 {
			t.Errorf("%s has no inode", text)
		}
		got = append(got, text)
	}
	slices.Sort(got)
	want := []string{"TCP 0.0.0.0:80", "TCP 10.0.0.1:83", "TCP 127.0.0.1:85", "TCP [::]:81", "TCP [::]:82+4", "TCP [fd00::1]:84",
		"UDP 0.0.0.0:53", "UDP 10.0.0.1:56", "UDP [::]:54", "UDP [::]:55+4"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A kernel without a protocol has no listeners of it.
func TestScanUnknownProtocol(t *testing.T) {
	err := dump(diagRequest{family: unix.AF_INET, protocol: 200, states: 1 << stateListen}, func([]byte) { t.Error("an answer") })
	if err != nil {
		t.Error(err)
	}
}

// A Watcher names the process, tells each conflict once, and forgets it when the process is gone.
func TestWatcher(t *testing.T) {
	alone(t)
	h := startHolder(t, "tcp [::]:30784,udp4 0.0.0.0:30784,tcp4 10.0.0.1:80,tcp4 0.0.0.0:81")
	var told []string
	w := NewWatcher(WatcherOptions{OnConflict: func(c Conflict) { told = append(told, c.String()) }, Log: slog.New(slog.DiscardHandler)})
	m := model(
		port("default/web TCP IPv4", "ClusterIP 10.96.0.1:80", "NodePort 30784"), port("default/web TCP IPv6", "NodePort 30784"),
		port("default/web:dns UDP IPv4", "NodePort 30784"),
		port("default/lb TCP IPv4", "LoadBalancer 10.0.0.1:80", "ExternalIP 10.0.0.1:82"),
	)
	w.Update(m, k8s.Changes{Ports: m.Ports, Node: true})
	look := func() (conflicts []string) {
		t.Helper()
		if err := w.look(); err != nil {
			t.Error(err)
		}
		for _, c := range w.Conflicts() {
			conflicts = append(conflicts, c.String())
		}
		return conflicts
	}
	by := fmt.Sprintf(" is also listened on by ports.test (pid %d) at ", h.pid)
	const end = ": clients reach the Service, not the process"
	lb, tcp, udp := "LoadBalancer 10.0.0.1:80/TCP of default/lb"+by+"10.0.0.1:80"+end, "NodePort 30784/TCP of default/web"+by+"[::]:30784"+end,
		"NodePort 30784/UDP of default/web:dns"+by+"0.0.0.0:30784"+end
	if got, want := look(), []string{lb, tcp}; !slices.Equal(got, want) {
		t.Errorf("first look:\n%q\nwant\n%q", got, want)
	}
	for range 3 {
		if got, want := look(), []string{lb, tcp, udp}; !slices.Equal(got, want) {
			t.Errorf("later look:\n%q\nwant\n%q", got, want)
		}
	}
	if want := []string{lb, tcp, udp}; !slices.Equal(told, want) {
		t.Errorf("told\n%q\nwant\n%q", told, want)
	}
	// A Service goes, then the process.
	w.Update(m, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{port("default/lb TCP IPv4").Name: nil}})
	if got, want := look(), []string{tcp, udp}; !slices.Equal(got, want) {
		t.Errorf("without the Service:\n%q\nwant\n%q", got, want)
	}
	h.stop()
	if got := look(); got != nil {
		t.Errorf("without the process: %q", got)
	}
	// Another process at the port is news.
	h = startHolder(t, "tcp [::]:30784")
	look()
	if n := len(told); n != 4 || !strings.Contains(told[3], fmt.Sprintf("(pid %d)", h.pid)) {
		t.Errorf("told\n%q", told)
	}
}

// Run looks once the changes of Services have settled, without waiting for the next turn; after a scan that
// fails, too.
func TestWatcherRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var found []Conflict
		w := NewWatcher(WatcherOptions{Every: time.Hour, OnConflict: func(c Conflict) { found = append(found, c) }, Log: slog.New(slog.DiscardHandler)})
		var scans atomic.Int32
		w.scan = func() ([]Listener, error) {
			if scans.Add(1) == 1 {
				return nil, fmt.Errorf("not now")
			}
			return []Listener{{Protocol: v1.ProtocolTCP, Addr: listener("TCP 0.0.0.0:30784").Addr}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		for i, port := range []*k8s.ServicePort{port("default/web TCP IPv4", "NodePort 30783"), port("default/web TCP IPv4", "NodePort 30784")} {
			w.Update(model(port), k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{port.Name: port}})
			synctest.Wait()
			if n := scans.Load(); int(n) != i {
				t.Errorf("%d scans before change %d has settled", n, i)
			}
			time.Sleep(settle)
			synctest.Wait()
			if n := scans.Load(); int(n) != i+1 {
				t.Errorf("%d scans after change %d", n, i)
			}
		}
		if len(found) != 1 || found[0].Port != 30784 || found[0].Process.PID != 0 {
			t.Errorf("found %v", found)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseDiag(f *testing.F) {
	b := make([]byte, diagLen)
	b[0] = unix.AF_INET6
	f.Add(b)
	f.Add(append(slices.Clone(b), 5, 0, attrV6Only, 0, 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, ok := parseDiag(b); ok && l.Addr.Port() == 0 {
			t.Errorf("%x: %v", b, l)
		}
	})
}

// BenchmarkLook is what a Watcher does every 30 s on a node with 10,000 Services, here without conflicts.
func BenchmarkLook(b *testing.B) {
	w := NewWatcher(WatcherOptions{Log: slog.New(slog.DiscardHandler)})
	m := &k8s.Model{}
	changes := map[k8s.PortName]*k8s.ServicePort{}
	for i := range 10000 {
		p := port(fmt.Sprintf("ns-%d/service TCP IPv4", i), "ClusterIP 10.96.0.1:80", fmt.Sprint("NodePort ", 50000+i))
		changes[p.Name] = p
	}
	w.Update(m, k8s.Changes{Ports: changes})
	for b.Loop() {
		must(b, w.look())
	}
}
