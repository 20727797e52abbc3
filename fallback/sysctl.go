package fallback

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// TCPBeLiberal is a kernel setting, below /proc/sys.
const TCPBeLiberal = "net/netfilter/nf_conntrack_tcp_be_liberal"

// IsLiberal reports whether TCPBeLiberal is set.
func IsLiberal() bool {
	v, err := sysctl(TCPBeLiberal)
	return err == nil && v != "0"
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b)), err
}

// RouteLocalnet is the kernel setting net.ipv4.conf.all.route_localnet of this network namespace.
type RouteLocalnet struct{}

// localnetFiles are the paths to write it through: in a container /proc/sys is read-only, but a volume may have this one file.
var localnetFiles = []string{"/proc/sys/net/ipv4/conf/all/route_localnet", "/host/proc/sys/net/ipv4/conf/all/route_localnet"}

// On reports whether it is set.
func (RouteLocalnet) On() (bool, error) {
	v, err := sysctl("net/ipv4/conf/all/route_localnet")
	return v != "" && v != "0", err
}

// Recorded reports whether it is set, and nkp has done that: it is recorded in a file, because others may flush what the planes record in
// their tables.
func (r RouteLocalnet) Recorded() bool {
	file, err := netnsFile(localnetRecord)
	var cookie []byte
	if err == nil {
		cookie, err = os.ReadFile(file)
	}
	on, _ := r.On()
	return on && err == nil && string(cookie) == netnsCookie()
}

// Disown forgets that nkp has set it: another program needs it from now on.
func (RouteLocalnet) Disown() {
	if file, err := netnsFile(localnetRecord); err == nil {
		_ = os.Remove(file)
	}
}

// localnetRecord is the kind of the file that records that nkp has set route_localnet. In it is netnsCookie.
const localnetRecord = "route_localnet"

// Set writes the setting, and what Recorded says; where there can be no file, the planes' tables alone record it. The error is that of the
// first file.
func (r RouteLocalnet) Set(on bool) (err error) {
	if record, noFile := netnsFile(localnetRecord); on && noFile == nil {
		_ = os.WriteFile(record, []byte(netnsCookie()), 0o600)
	}
	defer func() {
		if on == (err != nil) { // it is not set now
			r.Disown()
		}
	}()
	value := map[bool]string{true: "1", false: "0"}[on]
	for _, file := range localnetFiles {
		f, problem := os.OpenFile(file, os.O_WRONLY, 0)
		if problem == nil {
			_, problem = f.WriteString(value)
			_ = f.Close()
		}
		if problem == nil {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("set net.ipv4.conf.all.route_localnet to %s: %w", value, problem)
		}
	}
	return err
}

// Setting is a boolean sysctl.
type Setting interface {
	On() (bool, error)
	Set(on bool) error
}

// Localnet is the setting route_localnet, as one of the planes maintains it.
type Localnet struct {
	Setting // nil for IPv6
	Log     *slog.Logger
	IsSet   bool   // nkp has set it
	said    string // the last warning
}

// The consequences if route_localnet cannot be written.
const (
	NoLocalhost = "NodePorts do not work at 127.0.0.1; pass --iptables-localhost-nodeports=false if no client needs that"
	Unguarded   = "cannot unset route_localnet: the network reaches this node's 127.0.0.0/8 until the rules that protect it are in force"
	StaysSet    = "cannot unset route_localnet: it stays set, and so do the rules that protect 127.0.0.0/8 from the network"
)

// CannotSet logs that route_localnet cannot be written. It suppresses consecutive repetitions of the same text.
func (l *Localnet) CannotSet(text string, err error) {
	if l.said != text {
		l.Log.Warn(text, "error", err)
	}
	l.said = text
}
