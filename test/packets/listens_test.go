//go:build linux

package packets

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// Whatever the mode, the agent listens where SECURITY.md says, by default, and nowhere else; a listener that is
// turned off is off, and profiling adds none. Its socket is for root alone.
func TestListens(t *testing.T) {
	documented := documentedListeners(t)
	quiet := []string{"--healthz-bind-address", "", "--metrics-bind-address", "", "--socket", ""}
	outside := testbed.Options{NodeOutside: true}
	for _, tc := range []struct {
		name        string
		bed         testbed.Options
		mode, flags []string
		off         bool
	}{
		{"ovs", testbed.Options{}, nil, nil, false},
		{"iptables", outside, []string{"--mode", "iptables"}, nil, false},
		{"ovs, iptables for the node's own traffic", outside, []string{"--mode", "ovs", "--host-traffic", "iptables"}, nil, false},
		{"ovs, with profiling", testbed.Options{}, []string{"--mode", "ovs"}, []string{"--profiling"}, false},
		{"iptables, all off", outside, []string{"--mode", "iptables"}, quiet, true},
		{"ovs, all off", testbed.Options{}, []string{"--mode", "ovs"}, quiet, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.mode != nil {
				nightly.Only(t, "the usual mode is in the gate")
			}
			c := newCluster(t, tc.bed, tc.mode...)
			c.servePods(t)
			const check = 32100
			s := service("web", "40.0.0.1", func(s *v1.Service) {
				if !tc.off {
					loadBalancer("20.0.0.1", externalLocal)(s)
					s.Spec.HealthCheckNodePort = check
				}
			})
			c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
			dir := filepath.Join(c.RunDir, "run", "nkp") // like /run/nkp, to be made
			socket := filepath.Join(dir, "nkp.sock")
			func() {
				defer syscall.Umask(syscall.Umask(0)) // the worst case: a new file is open to everybody unless its mode is given
				c.runWith(append([]string{"--socket", socket}, tc.flags...)...)
			}()
			var want []string
			for _, where := range documented {
				where = strings.Replace(where, "/run/nkp/nkp.sock", socket, 1)
				where = strings.Replace(where, "0.0.0.0", "[::]", 1) // Go listens in both families
				if !tc.off {
					want = append(want, strings.Replace(where, "ADDRESS:healthCheckNodePort", fmt.Sprint("0.0.0.0:", check), 1))
				}
			}
			slices.Sort(want)
			client := c.Node
			if !tc.bed.NodeOutside {
				client = c.pods[0].Host
			}
			for _, end := range c.remotes { // all that nkp sets up is there, and nothing comes with a change
				c.put(slice(s, 8080, at(end.IP4)))
				c.awaitAnswer(t, client, "40.0.0.1:80", end.Name)
				c.listensAt(t, want)
			}
			if found, _ := filepath.Glob(socket); tc.off {
				if len(found) > 0 {
					t.Error("there is a socket all the same")
				}
				return
			}
			for path, mode := range map[string]os.FileMode{socket: os.ModeSocket | 0o600, dir: os.ModeDir | 0o755} {
				info, err := os.Stat(path)
				must(t, err)
				uid := info.Sys().(*syscall.Stat_t).Uid
				if info.Mode()&^mode != 0 || info.Mode().Type() != mode.Type() || uid != 0 {
					t.Errorf("%s has mode %v and user %d, want at most %v, of root", path, info.Mode(), uid, mode)
				}
			}
			files, err := os.ReadDir(dir)
			must(t, err)
			for _, f := range files {
				if info, err := f.Info(); err == nil && info.Mode().Perm()&0o022 != 0 {
					t.Errorf("%s has mode %v: others may write to it", f.Name(), info.Mode())
				}
			}
		})
	}
}

// listensAt waits until nkp listens where it should and nowhere else.
func (c *cluster) listensAt(t *testing.T, want []string) {
	t.Helper()
	wait.NoError(t, "nkp listens where it should", func() error {
		have, err := listeners(c.agent.Cmd.Process.Pid)
		if err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("the agent listens at\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
		return err
	})
}

// documentedListeners reads the first column of the table under "What listens".
func documentedListeners(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile("../../SECURITY.md")
	must(t, err)
	_, section, ok := strings.Cut(string(text), "## What listens\n")
	if section, _, _ = strings.Cut(section, "\n## "); !ok {
		t.Fatal("SECURITY.md has no section What listens")
	}
	for line := range strings.Lines(section) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			where, _, _ := strings.Cut(rest, "`")
			list = append(list, where)
		}
	}
	if len(list) < 3 {
		t.Fatalf("the table of What listens has only %d rows", len(list))
	}
	return list
}

// listeners returns where a process listens, and every socket of its that needs no connection to receive: tcp:, udp:, raw:,
// packet: and unix: with their addresses.
func listeners(pid int) (list []string, err error) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	// The columns of the inode differ: proc_net_tcp(5) and the kernel's net/unix/af_unix.c, net/packet/af_packet.c.
	for file, inode := range map[string]int{"tcp": 9, "tcp6": 9, "udp": 9, "udp6": 9, "udplite": 9, "udplite6": 9, "raw": 9, "raw6": 9, "packet": 8, "unix": 6} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if err != nil {
			continue // a protocol that the kernel has not
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) <= inode || !own[f[inode]] {
				continue
			}
			kind := strings.TrimSuffix(file, "6")
			switch {
			case kind == "unix":
				if f[3] == "00010000" && len(f) > 7 { // __SO_ACCEPTCON
					list = append(list, "unix:"+f[7])
				}
			case kind == "packet":
				list = append(list, "packet:"+f[3])
			case kind == "tcp" && f[3] != "0A": // not TCP_LISTEN
			default:
				at, err := procAddr(f[1])
				if err != nil {
					return nil, err
				}
				list = append(list, kind+":"+at.String())
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

// procAddr reads an address of /proc/net/tcp: 32-bit words in the host's order (little endian here), and a port.
func procAddr(s string) (netip.AddrPort, error) {
	ip, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(ip)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("odd address %q", s)
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}
