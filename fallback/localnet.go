package fallback

import (
	"fmt"
	"log/slog"
	"os"
)

// NodePorts at 127.0.0.1 need the kernel setting net.ipv4.conf.all.route_localnet. It also admits packets to
// 127.0.0.0/8 from the network (CVE-2020-8558). Each plane has a guard, rules that drop them, and the setting
// is on only while the guard is in force.

// Localnet keeps route_localnet in step with a plane's guard. It leaves alone what another program has set.
// It belongs to the goroutine of the worker of IPv4. A nil Localnet, that of IPv6, does nothing.
type Localnet struct {
	setting     Setting
	log         *slog.Logger
	owned       bool   // nkp has set it
	lastWarning string // repetitions are not logged
}

// Setting is a boolean kernel setting.
type Setting interface {
	On() (bool, error)
	Set(on bool) error
	// Recorded reports whether it is set, and there is a record that nkp has done that. Set writes the
	// record.
	Recorded() bool
}

// NewLocalnet returns a Localnet. owned reports whether nkp has set the setting.
func NewLocalnet(s Setting, owned bool, log *slog.Logger) *Localnet {
	return &Localnet{setting: s, owned: owned, log: log}
}

// Close unsets the setting if nkp has set it, and the guard is not wanted or not in force. It must be called
// before the guard is installed or repaired.
func (l *Localnet) Close(wanted, inForce bool) {
	if l == nil || !l.owned || wanted && inForce {
		return
	}

	text := "it stays set, and so do the rules that protect 127.0.0.0/8 from the network"
	if wanted {
		text = "the network reaches this node's 127.0.0.0/8 until the rules that protect it are in force"
	}
	err := l.setting.Set(false)
	l.owned = err != nil
	l.warn("cannot unset route_localnet: "+text, err)
}

// Open sets the setting unless it is set, and has what nkp has set recorded again if the record is gone. It
// must be called only while the guard is in force.
func (l *Localnet) Open() {
	if l == nil {
		return
	}
	on, _ := l.setting.On() // if it cannot be read, it cannot be written either
	if on && (!l.owned || l.setting.Recorded()) {
		return
	}

	err := l.setting.Set(true)
	if on {
		return
	}
	l.owned = err == nil
	l.warn("NodePorts do not work at 127.0.0.1; "+
		"pass --iptables-localhost-nodeports=false if no client needs that", err)
}

// warn logs why the setting could not be written, once in a row; nil: it was.
func (l *Localnet) warn(text string, err error) {
	if err == nil {
		return
	}
	if l.lastWarning != text {
		l.log.Warn(text, "error", err)
	}
	l.lastWarning = text
}

// ReleaseLocalnet unsets route_localnet if nkp has set it, unless guarded, if not nil, reports that another
// plane of nkp's goes on to serve and has its guard in force. It reports whether a guard must stay: the
// setting is still on, and no other plane's guard is in force.
func ReleaseLocalnet(guarded func() (bool, error)) (unguarded bool, err error) {
	var kernel RouteLocalnet
	on, err := kernel.On()
	if err != nil {
		return true, nil // an unknown value counts as set
	}
	if !on {
		kernel.Disown() // who sets it from now on is another program
		return false, nil
	}
	if !kernel.Recorded() {
		return true, nil
	}

	if guarded != nil {
		if yes, err := guarded(); yes || err != nil {
			return err != nil, err
		}
	}
	err = kernel.Set(false)
	return err != nil, err
}

// RouteLocalnet is the kernel setting net.ipv4.conf.all.route_localnet of this network namespace. A file
// records that nkp has set it, so that the next run knows, and the other plane, whoever flushes their tables.
type RouteLocalnet struct{}

// localnetRecord is the kind of that file. In it is netnsCookie.
const localnetRecord = "route_localnet"

// localnetFiles are the paths to write the setting through: in a container /proc/sys is read-only, but a
// volume may have this one file.
var localnetFiles = []string{
	"/proc/sys/net/ipv4/conf/all/route_localnet",
	"/host/proc/sys/net/ipv4/conf/all/route_localnet",
}

// On reports whether it is set.
func (RouteLocalnet) On() (bool, error) {
	v, err := sysctl("net/ipv4/conf/all/route_localnet")
	return v != "" && v != "0", err
}

// Recorded reports whether it is set, and nkp has done that.
func (r RouteLocalnet) Recorded() bool {
	file, err := netnsFile(localnetRecord)
	var cookie []byte
	if err == nil {
		cookie, err = os.ReadFile(file)
	}
	on, _ := r.On()
	return on && err == nil && string(cookie) == netnsCookie()
}

// Disown deletes the record: another program needs the setting from now on.
func (RouteLocalnet) Disown() {
	if file, err := netnsFile(localnetRecord); err == nil {
		_ = os.Remove(file)
	}
}

// Set writes the setting and the record. What cannot be recorded is not set. The error is that of the first
// file.
func (r RouteLocalnet) Set(on bool) (err error) {
	if on {
		record, err := netnsFile(localnetRecord)
		if err == nil {
			err = os.WriteFile(record, []byte(netnsCookie()), 0o600)
		}
		if err != nil {
			return fmt.Errorf("record that nkp sets net.ipv4.conf.all.route_localnet: %w", err)
		}
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
