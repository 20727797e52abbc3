package sysctl

import (
	"math"
	"time"
)

// Settings are what kube-proxy calls the conntrack configuration. A zero field leaves the kernel's value
// alone.
type Settings struct {
	MaxPerCore int // connections for each CPU (--conntrack-max-per-core)
	Min        int // connections at least, if MaxPerCore is set (--conntrack-min)

	TCPEstablished time.Duration // idle established connections (--conntrack-tcp-timeout-established)
	TCPCloseWait   time.Duration // half closed connections (--conntrack-tcp-timeout-close-wait)
	TCPBeLiberal   bool          // take only RSTs outside the window for invalid (--conntrack-tcp-be-liberal)
	UDP            time.Duration // without a reply so far (--conntrack-udp-timeout)
	UDPStream      time.Duration // with replies (--conntrack-udp-timeout-stream)
}

// Change is a kernel setting that nkp has changed.
type Change struct {
	Name string `json:"name"` // net.netfilter.nf_conntrack_max
	From string `json:"from"`
	To   string `json:"to"`
}

// Defaults are kube-proxy's.
func Defaults() Settings {
	return Settings{
		MaxPerCore:     32768,
		Min:            131072,
		TCPEstablished: 24 * time.Hour,
		TCPCloseWait:   time.Hour,
	}
}

// maxConnections bounds what MaxPerCore comes to on machines with many cores, as in kube-proxy: a million
// entries take about 300 MB.
const maxConnections = 1 << 20

// max returns the number of connections wanted on a machine with that many CPUs; 0: the kernel's own limit
// stays.
func (s *Settings) max(cpus int) int {
	if s.MaxPerCore <= 0 {
		return 0
	}
	if s.MaxPerCore > maxConnections/cpus {
		return maxConnections
	}
	return max(s.MaxPerCore*cpus, s.Min)
}

// seconds returns a timeout as the kernel takes it. A part of a second counts as a whole one: 0 would forget
// every connection at once.
func seconds(d time.Duration) int {
	return int(min(math.Ceil(d.Seconds()), math.MaxInt32))
}
