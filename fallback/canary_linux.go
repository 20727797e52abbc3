package fallback

import (
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
	"github.com/nkp-proxy/nkp/internal/ports"
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

// canaryUntracked is what a canary shows that conntrack has not seen. Other Service packets may be tracked,
// because they do not pass lo.
const canaryUntracked = "it is not translated, because a rule of others keeps it from being tracked " +
	"(notrack): of all packets, or of those on lo alone; then only what the node sends to itself fails, " +
	"by its NodePorts or to endpoints at its own addresses"

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
	endpoint, err := openEndpoint(at.Endpoint)
	if err != nil {
		return dataplane.CanaryResult{Unknown: "no socket for the canary's endpoint: " + err.Error()}
	}
	defer endpoint.Close()
	for range canaryTries {
		if r = tryCanary(at, endpoint); r.Lost == "" {
			return r
		}
	}
	if fill, err := conntrack.Usage(); err == nil && fill.Entries+fill.Limit/100 >= fill.Limit {
		r.Full, r.Lost = true, fill.String()+": full, it gets no entry"
	}
	return r
}

// tryCanary sends a datagram and its answer, and deletes their conntrack entry.
func tryCanary(at serving.Canary, endpoint *rawEndpoint) (r dataplane.CanaryResult) {
	client, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Client, 0)),
		net.UDPAddrFromAddrPort(at.Frontend))
	if err != nil {
		return dataplane.CanaryResult{Unknown: "no socket for the canary's client: " + err.Error()}
	}
	defer client.Close()
	from := client.LocalAddr().(*net.UDPAddr).AddrPort()
	switch taken, err := ports.ReceivesUDP(from, at.Endpoint); {
	case err != nil:
		return dataplane.CanaryResult{Unknown: "cannot see who listens at its endpoint: " + err.Error()}
	case taken:
		return dataplane.CanaryResult{Unknown: fmt.Sprintf("another program listens at UDP %v, its endpoint",
			at.Endpoint)}
	}

	entry := dpctl.Connection{Protocol: "UDP", Frontend: at.Frontend, Client: from}
	defer func() {
		if _, err := conntrack.ForgetOne(&entry); err != nil && r.Lost == "" {
			r = dataplane.CanaryResult{Unknown: "its conntrack entry is left to expire: " + err.Error()}
		}
	}()

	word := strconv.FormatUint(rand.Uint64(), 36)
	if r = launch(client, word); r.Lost != "" || r.Unknown != "" {
		return r
	}
	heardFrom, err := endpoint.hear(word)
	if err != nil {
		r.Lost = "it does not come to its endpoint: a rule or element of nkp's is missing or changed, " +
			"or a rule of others in hook output, postrouting, prerouting or input drops it"
		_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := client.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNREFUSED) {
			r = dataplane.CanaryResult{Passed: canaryWayIn[:1],
				Lost: "it is not translated: nkp's rules do not lead from hook output to its endpoint"}
			if tracked, err := conntrack.ForgetOne(&entry); err == nil && !tracked {
				r = dataplane.CanaryResult{Partial: true, Lost: canaryUntracked}
			}
		}
		return r
	}

	if err = endpoint.answer(heardFrom, word); err == nil {
		err = hear(client, word)
	}
	if err != nil {
		return dataplane.CanaryResult{Passed: canaryWayIn, Lost: "its answer is lost: it is not translated " +
			"back, or a rule of others in hook output, postrouting, prerouting or input drops it"}
	}
	return dataplane.CanaryResult{Passed: canaryWayBack}
}

// launch sends a datagram with a word. The result is zero if the kernel takes it.
func launch(client *net.UDPConn, word string) (r dataplane.CanaryResult) {
	switch _, err := client.Write([]byte(word)); {
	case errors.Is(err, syscall.EPERM): // the kernel's error of a packet that a hook dropped
		r.Lost = fmt.Sprintf("a rule in hook output or postrouting drops it (%v)", err)
	case err != nil: // such as a device lo that is down
		r.Unknown = "it cannot be sent: " + err.Error()
	}
	return r
}

// hear waits for a datagram with a word. The kernel refuses the canary as well as delivering it, because no
// UDP socket is bound to its endpoint: that is no answer.
func hear(client *net.UDPConn, word string) error {
	if err := client.SetReadDeadline(time.Now().Add(canaryWait)); err != nil {
		return err
	}
	b := make([]byte, 64)
	for {
		n, err := client.Read(b)
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue
		}
		if err != nil || string(b[:n]) == word {
			return err
		}
	}
}
