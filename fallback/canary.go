package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// A canary is up to canaryTries datagrams, each from a port of its own, with canaryWait for each way.
const (
	canaryTries = 3
	canaryWait  = 300 * time.Millisecond
)

// Parts of the path, in order.
var (
	canaryWayIn   = []string{"hook output", "the Service's map or chain", "choice of endpoint", "translation"}
	canaryWayBack = append(canaryWayIn[:4:4], "hook input", "answer translated back")
)

// newCanary returns what sends canaries through the rules of families.
func (p *Plane) newCanary(families []k8s.Family) *dataplane.Canary {
	return dataplane.NewCanary(p.Name(), p.Log, p.opts.Hooks.DataPath, families,
		func(_ context.Context, f k8s.Family, _ bool) dataplane.CanaryResult { return p.sendCanary(f) })
}

// Canary returns what the canaries have shown; nil: none are sent.
func (p *Plane) Canary() []dataplane.CanaryVerdict {
	if c := p.canary.Load(); c != nil {
		return c.Verdicts()
	}
	return nil
}

// sendCanary sends a canary of a family. It takes canaryTries*2*canaryWait at most.
func (p *Plane) sendCanary(f k8s.Family) (r dataplane.CanaryResult) {
	p.mu.Lock()
	s := p.families[f]
	installed := s != nil && (s.InStep || !s.LastSync.IsZero()) // a restart may find all in place
	p.mu.Unlock()
	if !installed {
		return dataplane.CanaryResult{Unknown: "the rules have not been in step yet"}
	}

	at := serving.CanaryOf(f)
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at.Endpoint))
	if err != nil {
		return dataplane.CanaryResult{Unknown: "no socket for the canary's endpoint: " + err.Error()}
	}
	defer server.Close()
	for range canaryTries {
		if r = tryCanary(at, server); r.Lost == "" {
			return r
		}
	}
	if fill, err := conntrack.Usage(); err == nil && fill.Entries+fill.Limit/100 >= fill.Limit {
		r.Full, r.Lost = true, fill.String()+": full, it gets no entry"
	}
	return r
}

// tryCanary sends a datagram and its answer, and deletes their conntrack entry.
func tryCanary(at serving.Canary, server *net.UDPConn) (r dataplane.CanaryResult) {
	client, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Client, 0)),
		net.UDPAddrFromAddrPort(at.Frontend))
	if err != nil {
		return dataplane.CanaryResult{Unknown: "no socket for the canary's client: " + err.Error()}
	}
	defer client.Close()
	defer func() {
		entry := dpctl.Connection{Protocol: "UDP", Frontend: at.Frontend,
			Client: client.LocalAddr().(*net.UDPAddr).AddrPort()}
		if err := conntrack.ForgetOne(&entry); err != nil && r.Lost == "" {
			r = dataplane.CanaryResult{Unknown: "its conntrack entry is left to expire: " + err.Error()}
		}
	}()

	word := strconv.FormatUint(rand.Uint64(), 36)
	switch _, err := client.Write([]byte(word)); {
	case errors.Is(err, syscall.EPERM): // what the kernel says of a packet that a hook dropped
		r.Lost = fmt.Sprintf("a rule in hook output or postrouting drops it (%v)", err)
		return r
	case err != nil: // such as lo that is down
		return dataplane.CanaryResult{Unknown: "it cannot be sent: " + err.Error()}
	}
	from, err := hear(server, word)
	if err != nil {
		r.Lost = "it does not come to its endpoint: a rule or element of nkp's is missing or changed, " +
			"or a rule of others in hook output, postrouting, prerouting or input drops it"
		_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := client.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNREFUSED) {
			r = dataplane.CanaryResult{Passed: canaryWayIn[:1],
				Lost: "it is not translated: nkp's rules do not lead from hook output to its endpoint"}
		}
		return r
	}

	if _, err = server.WriteToUDPAddrPort([]byte(word), from); err == nil {
		_, err = hear(client, word)
	}
	if err != nil {
		return dataplane.CanaryResult{Passed: canaryWayIn, Lost: "its answer is lost: it is not translated " +
			"back, or a rule of others in hook output, postrouting, prerouting or input drops it"}
	}
	return dataplane.CanaryResult{Passed: canaryWayBack}
}

// hear waits for a datagram with a word and returns its sender. Others are not answered.
func hear(conn *net.UDPConn, word string) (from netip.AddrPort, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(canaryWait)); err != nil {
		return from, err
	}
	b := make([]byte, 64)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil || string(b[:n]) == word {
			return from, err
		}
	}
}
