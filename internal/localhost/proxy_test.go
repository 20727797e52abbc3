package localhost

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// Both directions of a connection are copied in full, at the same time, and each end may close its half and go on reading.
func TestForwards(t *testing.T) {
	sent, answer := random(t, 8<<20), random(t, 4<<20)
	got := make(chan []byte, 1)
	server := serve(t, func(c *net.TCPConn) {
		early := make(chan error, 1)
		go func() { _, err := c.Write(answer[:len(answer)/2]); early <- err }()
		all, err := io.ReadAll(c) // until the client closes its half
		got <- all
		if err == nil && <-early == nil {
			_, _ = c.Write(answer[len(answer)/2:])
		}
	})
	b := newBed(t, Options{})
	at := b.set("web", server)
	c := b.dial(at)
	read := make(chan []byte, 1)
	go func() { all, _ := io.ReadAll(c); read <- all }()
	_, err := c.Write(sent)
	must(t, err)
	must(t, c.CloseWrite())
	if !bytes.Equal(<-got, sent) || !bytes.Equal(<-read, answer) {
		t.Error("an end did not get what the other has sent")
	}
	b.await("it has ended", func(f Figures) bool { return f.Open == 0 && f.Results[connected] == 1 })

	// The server may be the one that closes its half.
	b.set("web", serve(t, func(c *net.TCPConn) {
		_ = c.CloseWrite()
		all, _ := io.ReadAll(c)
		got <- all
	}))
	c = b.dial(at)
	if all, err := io.ReadAll(c); err != nil || len(all) > 0 {
		t.Errorf("read %d bytes, %v, want the end", len(all), err)
	}
	_, err = c.Write([]byte("still open"))
	must(t, err)
	must(t, c.Close())
	if all := <-got; string(all) != "still open" {
		t.Errorf("the server got %q after it had closed its half", all)
	}
}

// A connection that an end resets is reset at the other, and not closed as if it were complete; so is one that no endpoint accepts.
func TestResets(t *testing.T) {
	b := newBed(t, Options{})
	at := b.set("web", serve(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); reset(c) }))
	c := b.dial(at)
	_, err := c.Write([]byte("x"))
	must(t, err)
	b.wantReset(c)

	met := make(chan error, 1)
	b.set("web", serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, err := io.ReadAll(c)
		met <- err
	}))
	c = b.dial(at)
	_, err = io.ReadFull(c, make([]byte, 1))
	must(t, err)
	reset(c)
	if err := <-met; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server meets %v, want a reset", err)
	}

	b.set("web", netip.AddrPortFrom(k8s.Loopback6, freePort(t)))
	b.wantResetAt(at)
	b.await("all have ended", func(f Figures) bool { return f.Open == 0 && f.Results[connected] == 2 && f.Results[unanswered] == 1 })
}

// A connection whose client is gone and whose server does not mind ends after a pause.
func TestHalfOpen(t *testing.T) {
	old := halfOpen
	halfOpen = time.Millisecond
	t.Cleanup(func() { halfOpen = old })
	ended := make(chan struct{})
	defer close(ended)
	b := newBed(t, Options{})
	c := b.dial(b.set("web", serve(t, func(*net.TCPConn) { <-ended })))
	must(t, c.Close())
	b.await("it has ended", func(f Figures) bool { return f.Open == 0 && f.Results[connected] == 1 })
}

// An end that never reads does not keep a connection for ever.
func TestStalled(t *testing.T) {
	old := stalled
	stalled = 50 * time.Millisecond
	t.Cleanup(func() { stalled = old })
	ended := make(chan struct{})
	defer close(ended)
	b := newBed(t, Options{})
	c := b.dial(b.set("web", serve(t, func(*net.TCPConn) { <-ended })))
	sent := make(chan error, 1)
	go func() { _, err := c.Write(make([]byte, 64<<20)); sent <- err }()
	b.await("it has ended", func(f Figures) bool { return f.Open == 0 && f.Results[connected] == 1 })
	if err := <-sent; err == nil {
		t.Error("an end that reads nothing has got 64 MiB")
	}
}

// Listeners and connections leave descriptors to the rest of nkp.
func TestLimitsOfDescriptors(t *testing.T) {
	for descriptors, want := range map[int]Limits{
		1 << 20: DefaultLimits, 2 * (4096 + 2*1024): DefaultLimits,
		4096: {1365, 341, 85}, 1024: {341, 85, 21}, 3: {1, 1, 1},
	} {
		if l := DefaultLimits.within(descriptors); l != want {
			t.Errorf("of %d descriptors: %+v, want %+v", descriptors, l, want)
		}
	}
}

// Connections stay while the endpoints change. They end when a removed endpoint's are to be closed, and with the listener: when the
// Service has no endpoints any more, gets another number, or is deleted.
func TestUpdates(t *testing.T) {
	first, firstHas := held(t)
	second, secondHas := held(t)
	b := newBed(t, Options{})
	at := b.set("web", first)
	one := b.dial(at)
	<-firstHas
	b.set("web", second)
	two := b.dial(at)
	<-secondHas
	b.wantOpen(one, two)

	b.change("web", func(sp *k8s.ServicePort) {
		sp.Removed, sp.Serving = &k8s.Removed{Unknown: true}, []netip.AddrPort{second}
	})
	b.wantOpen(one, two)
	b.change("web", func(sp *k8s.ServicePort) { sp.Removed = &k8s.Removed{} })
	b.wantReset(one)
	b.wantOpen(two)

	b.set("web")
	b.wantReset(two)
	b.wantRefused(at)
	b.set("web", first)
	b.await("listens again", func(f Figures) bool { return f.Listening == 1 })
	three := b.dial(at)
	<-firstHas

	b.change("web", func(sp *k8s.ServicePort) { sp.Frontends[0].Port = freePort(t) })
	b.wantReset(three)
	b.wantRefused(at)
	b.await("listens elsewhere", func(f Figures) bool { return f.Listening == 1 })
	four := b.dial(b.at("web"))
	<-firstHas
	b.remove("web")
	b.wantReset(four)
	b.await("nothing is left", func(f Figures) bool { return f.Listening+f.Unserved+f.Open == 0 })
}

// Only TCP over IPv6 is listened for, at a frontend at [::1] that is in force; with policy Local, too, clients of this node get
// endpoints of any node.
func TestWanted(t *testing.T) {
	server, has := held(t)
	b := newBed(t, Options{})
	for name, change := range map[string]func(*k8s.ServicePort){
		"udp":       func(sp *k8s.ServicePort) { sp.Name.Protocol = v1.ProtocolUDP },
		"ipv4":      func(sp *k8s.ServicePort) { sp.Name.Family = k8s.IPv4 },
		"elsewhere": func(sp *k8s.ServicePort) { sp.Frontends[0].Address = netip.MustParseAddr("fd00::1") },
		"every":     func(sp *k8s.ServicePort) { sp.Frontends[0].Address = netip.Addr{} },
		"shadowed":  func(sp *k8s.ServicePort) { sp.Frontends[0].ShadowedBy = "default/other" },
		"empty":     func(sp *k8s.ServicePort) { sp.ClusterEndpoints = nil },
	} {
		sp := servicePort(name, freePort(t), server)
		change(sp)
		b.apply(sp.Name, sp)
	}
	if f := b.Figures(); f.Listening+f.Unserved+f.Opening != 0 {
		t.Errorf("%d NodePorts are wanted, want none", f.Listening+f.Unserved+f.Opening)
	}
	at := b.set("local", server)
	b.change("local", func(sp *k8s.ServicePort) { sp.Frontends[0].Policy = k8s.Local })
	b.dial(at)
	<-has
}

// A NodePort that another process has is left to it: said once, counted at each attempt, and it keeps no other from being served. A
// process that is restarted between two attempts gets its port back.
func TestPortOfAnother(t *testing.T) {
	for _, address := range []string{"[::1]", "[::]"} {
		t.Run(address, func(t *testing.T) {
			var said []string
			b := newIdleBed(t, Options{OnFailure: func(n k8s.PortName, text string) {
				said = append(said, n.String()+": "+text)
			}})
			server, _ := held(t)
			number := freePort(t)
			taken, other := servicePort("taken", number, server), servicePort("other", freePort(t), server)
			process := listen(t, address, number)
			b.Update(&k8s.Model{}, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{taken.Name: taken, other.Name: other}})

			try := func(want Figures) {
				t.Helper()
				b.mu.Lock()
				if q := b.ports[taken.Name]; q != nil {
					q.due = time.Time{} // as if the pause were over
				}
				b.mu.Unlock()
				b.open(t.Context())
				if f := b.Figures(); f.Listening != want.Listening || f.Unserved != want.Unserved || f.Failures != want.Failures {
					t.Fatalf("%d NodePorts are listened on, %d not, after %d failures; want %d, %d, %d",
						f.Listening, f.Unserved, f.Failures, want.Listening, want.Unserved, want.Failures)
				}
			}
			try(Figures{Listening: 1, Unserved: 1, Failures: 1})
			try(Figures{Listening: 1, Unserved: 1, Failures: 2})
			if len(said) != 1 || !strings.Contains(said[0], "default/taken: NodePort") || !strings.Contains(said[0], "address already in use") {
				t.Errorf("it was said: %q", said)
			}
			if text := b.Problems()[taken.Name]; !strings.Contains(text, "address already in use") {
				t.Errorf("why nkp does not listen: %q", text)
			}

			must(t, process.Close())
			try(Figures{Listening: 1, Unserved: 1, Failures: 2}) // free for the first time
			process = listen(t, address, number)                 // which has started anew
			try(Figures{Listening: 1, Unserved: 1, Failures: 3})
			must(t, process.Close())
			try(Figures{Listening: 1, Unserved: 1, Failures: 3})
			try(Figures{Listening: 2, Failures: 3})
			if len(b.Problems()) > 0 || len(said) != 1 {
				t.Errorf("nkp listens, but says %q, %q", b.Problems(), said)
			}
			b.closeAll()
		})
	}
}

// Listeners, connections and those of a Service port are bounded; what ends makes room.
func TestLimits(t *testing.T) {
	server, has := held(t)
	b := newBed(t, Options{Limits: Limits{Listeners: 2, Connections: 3, PerPort: 2}})
	a, z := b.set("a", server), b.set("z", server)
	b.apply(servicePort("more", freePort(t), server).Name, servicePort("more", freePort(t), server))
	b.await("one is beyond the limit", func(f Figures) bool { return f.Listening == 2 && f.Unserved == 1 })
	wait.NoError(t, "it is said", func() error {
		if text := b.Problems()[servicePort("more", 0).Name]; !strings.Contains(text, "at most 2 NodePorts") {
			return errors.New(text)
		}
		return nil
	})

	var open []*net.TCPConn
	for _, at := range []netip.AddrPort{a, a, z} {
		open = append(open, b.dial(at))
		<-has
	}
	b.wantResetAt(a)
	b.await("a has too many", func(f Figures) bool { return f.Results[tooManyOfPort] == 1 && f.Results[tooMany] == 0 })
	b.wantResetAt(z)
	b.await("all have too many", func(f Figures) bool {
		return f.Results[tooManyOfPort] == 1 && f.Results[tooMany] == 1 && f.Open == 3 && f.Buffers == 3*2*bufferSize
	})
	b.wantOpen(open...)
	reset(open[0])
	b.await("one has ended", func(f Figures) bool { return f.Open == 2 })
	b.dial(z)
	<-has

	b.remove("a")
	b.await("another gets its place", func(f Figures) bool { return f.Listening == 2 && f.Unserved == 0 })
}

// When Run ends, listeners and connections have ended, too.
func TestRunEnds(t *testing.T) {
	server, has := held(t)
	b := newBed(t, Options{})
	at := b.set("web", server)
	c := b.dial(at)
	<-has
	b.stop()
	b.wantReset(c)
	b.wantRefused(at)
	if f := b.Figures(); f.Open+f.Listening != 0 {
		t.Errorf("%d connections and %d listeners are left", f.Open, f.Listening)
	}
}

// Endpoints are chosen by weight. With session affinity all connections get the same one while it is there, and none has begun for the
// time of the affinity.
func TestChoice(t *testing.T) {
	e := func(n byte, more uint8) k8s.Endpoint {
		return k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: n}), 80), MoreWeight: more}
	}
	q := &port{endpoints: []k8s.Endpoint{e(1, 6), e(2, 2)}}
	const draws = 20000
	first := 0
	for range draws {
		if q.choose() == q.endpoints[0].Addr {
			first++
		}
	}
	if first < draws*68/100 || first > draws*72/100 { // six standard deviations
		t.Errorf("the endpoint of weight 7 of 10 was chosen %d times of %d", first, draws)
	}

	q = &port{endpoints: []k8s.Endpoint{e(1, 0), e(2, 0), e(3, 0)}, affinity: time.Hour}
	pinned := q.choose()
	for range 50 {
		if at := q.choose(); at != pinned {
			t.Fatalf("%v was chosen after %v", at, pinned)
		}
	}
	gone := func(e k8s.Endpoint) bool { return e.Addr == pinned }
	q.endpoints = slices.DeleteFunc(q.endpoints, gone)
	if at := q.choose(); at == pinned {
		t.Error("an endpoint was chosen that is gone")
	}
	seen := map[netip.AddrPort]bool{}
	for range 100 {
		q.pinnedAt = q.pinnedAt.Add(-2 * time.Hour)
		seen[q.choose()] = true
	}
	if len(seen) != 2 {
		t.Errorf("%d endpoints were chosen after the time of the affinity, want 2", len(seen))
	}
}

// bed is a Proxy that runs, and the model that it has.
type bed struct {
	*Proxy
	t    *testing.T
	has  map[string]*k8s.ServicePort
	stop func() // ends Run and waits for it
}

func newIdleBed(t *testing.T, o Options) *bed {
	o.Log = slog.New(slog.DiscardHandler)
	return &bed{Proxy: New(o), t: t, has: map[string]*k8s.ServicePort{}}
}

func newBed(t *testing.T, o Options) *bed {
	b := newIdleBed(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = b.Run(ctx); close(ended) }()
	b.stop = func() { cancel(); <-ended }
	t.Cleanup(b.stop)
	return b
}

// servicePort returns a TCP port with a NodePort at [::1].
func servicePort(name string, number uint16, endpoints ...netip.AddrPort) *k8s.ServicePort {
	sp := &k8s.ServicePort{
		Name: k8s.PortName{
			ServiceName: k8s.ServiceName{Namespace: "default", Name: name}, Protocol: v1.ProtocolTCP, Family: k8s.IPv6,
		},
		Frontends: []k8s.Frontend{{Type: k8s.NodePort, Address: k8s.Loopback6, Port: number}},
	}
	for _, e := range endpoints {
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, k8s.Endpoint{Addr: e})
	}
	return sp
}

func (b *bed) apply(n k8s.PortName, sp *k8s.ServicePort) {
	b.Update(&k8s.Model{}, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{n: sp}})
}

// set gives a Service these endpoints, waits until it is listened for, and returns where.
func (b *bed) set(name string, endpoints ...netip.AddrPort) netip.AddrPort {
	b.t.Helper()
	sp := servicePort(name, 0, endpoints...)
	if before := b.has[name]; before != nil {
		sp.Frontends = before.Frontends
	} else {
		sp.Frontends[0].Port = freePort(b.t)
	}
	b.has[name] = sp
	b.apply(sp.Name, sp)
	if len(endpoints) > 0 {
		b.await("all are listened for", func(f Figures) bool { return f.Unserved+f.Opening == 0 })
	}
	return b.at(name)
}

func (b *bed) at(name string) netip.AddrPort {
	return netip.AddrPortFrom(k8s.Loopback6, b.has[name].Frontends[0].Port)
}

func (b *bed) change(name string, change func(*k8s.ServicePort)) {
	sp := *b.has[name]
	sp.Frontends = slices.Clone(sp.Frontends)
	change(&sp)
	b.has[name] = &sp
	b.apply(sp.Name, &sp)
}

func (b *bed) remove(name string) {
	b.apply(b.has[name].Name, nil)
	delete(b.has, name)
}

func (b *bed) await(what string, is func(Figures) bool) {
	b.t.Helper()
	wait.NoError(b.t, what, func() error {
		if f := b.Figures(); !is(f) {
			return errors.New(strings.Join(slices.Sorted(maps.Values(b.Problems())), "; "))
		}
		return nil
	})
}

func (b *bed) dial(at netip.AddrPort) *net.TCPConn {
	b.t.Helper()
	c, err := net.DialTCP("tcp6", nil, net.TCPAddrFromAddrPort(at))
	must(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (b *bed) wantRefused(at netip.AddrPort) {
	b.t.Helper()
	if _, err := net.Dial("tcp6", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		b.t.Errorf("a connection to %s meets %v, want it refused", at, err)
	}
}

// wantResetAt checks that a new connection is accepted, and reset at once.
func (b *bed) wantResetAt(at netip.AddrPort) {
	b.t.Helper()
	c, err := net.DialTCP("tcp6", nil, net.TCPAddrFromAddrPort(at))
	if err == nil {
		defer c.Close()
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		b.t.Errorf("the client meets %v, want a reset", err)
	}
}

func (b *bed) wantReset(c *net.TCPConn) {
	b.t.Helper()
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		b.t.Errorf("the client meets %v, want a reset", err)
	}
}

// wantOpen checks that nothing has ended the connections: what is written comes back (see held).
func (b *bed) wantOpen(list ...*net.TCPConn) {
	b.t.Helper()
	for i, c := range list {
		_, err := c.Write([]byte("?"))
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			b.t.Errorf("connection %d: %v", i, err)
		}
	}
}

// held serves connections that stay: each byte comes back.
func held(t *testing.T) (at netip.AddrPort, accepted <-chan *net.TCPConn) {
	t.Helper()
	list := make(chan *net.TCPConn, 100)
	return serve(t, func(c *net.TCPConn) {
		list <- c
		_, _ = io.Copy(c, c)
	}), list
}

// serve calls f for each connection to an address of its own.
func serve(t *testing.T, f func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l := listen(t, "[::1]", 0)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func listen(t *testing.T, address string, number uint16) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp6", fmt.Sprint(address, ":", number))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	l := listen(t, "[::]", 0)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := rand.Read(b)
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
