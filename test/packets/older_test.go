//go:build linux

package packets

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// olderSwitch puts something between nkp and the switch that refuses NXT_CT_FLUSH, as Open vSwitch before 3.1 does, and
// gives the target to reach the switch by.
func olderSwitch(t *testing.T, c *cluster) string {
	t.Helper()
	path := filepath.Join(c.RunDir, "older.mgmt")
	l, err := net.Listen("unix", path)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			nkp, err := l.Accept()
			if err != nil {
				return
			}
			go between(nkp, c.Mgmt(c.Bridge)) // ends with either connection
		}
	}()
	return "unix:" + path
}

// between passes messages on between nkp and the switch, except NXT_CT_FLUSH, which it answers with an error.
func between(nkp net.Conn, mgmt string) {
	defer nkp.Close()
	sw, err := net.Dial("unix", mgmt)
	if err != nil {
		return
	}
	defer sw.Close()
	var mu sync.Mutex // whole messages to nkp
	go func() {
		defer nkp.Close()
		for {
			m, err := message(sw)
			if err != nil {
				return
			}
			mu.Lock()
			_, err = nkp.Write(m)
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	for {
		m, err := message(nkp)
		if err != nil {
			return
		}
		// OFPT_EXPERIMENTER (4) of vendor NX (0x2320), subtype 32.
		if m[1] == 4 && len(m) >= 16 && binary.BigEndian.Uint64(m[8:]) == 0x2320<<32|32 {
			refusal := []byte{m[0], 1, 0, 12, m[4], m[5], m[6], m[7], 0, 1, 0, 4} // OFPBRC_BAD_SUBTYPE
			mu.Lock()
			_, err = nkp.Write(refusal)
			mu.Unlock()
		} else {
			_, err = sw.Write(m)
		}
		if err != nil {
			return
		}
	}
}

// message reads one OpenFlow message.
func message(r io.Reader) ([]byte, error) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[2:]))
	if n < len(head) {
		return nil, errors.New("a message shorter than its header")
	}
	m := append(head, make([]byte, n-len(head))...)
	_, err := io.ReadFull(r, m[8:])
	return m, err
}

// lacks returns what status says that the switch lacks, and its warnings.
func (c *cluster) lacks(t *testing.T) (lacks, warnings string) {
	t.Helper()
	out, errOut, status := c.nkp("status", "-o", "json", "--socket", c.socket())
	var s struct {
		Bridge   struct{ Lacks []string }
		Warnings []string
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("nkp status: %d, %v: %s%s", status, err, out, errOut)
	}
	return strings.Join(s.Bridge.Lacks, "\n"), strings.Join(s.Warnings, "\n")
}

// With a switch that cannot forget connections over OpenFlow, nkp forgets them over the control socket.
func TestStaleUDPBefore31(t *testing.T) {
	nightly.Only(t, "TestStaleUDP has a present switch")
	c := newCluster(t, testbed.Options{})
	c.flags = append(c.flags, "--openflow", olderSwitch(t, c))
	staleUDP(t, c)
	if lacks, warnings := c.lacks(t); !strings.Contains(lacks, "control socket") || strings.Contains(warnings, "conntrack entries") {
		t.Errorf("status says that the switch lacks %q, and warns %q", lacks, warnings)
	}
}

// Where the control socket cannot be reached either, status says what that means; Services are served all the same.
func TestNothingForgets(t *testing.T) {
	nightly.Only(t, "a rare combination")
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	c.runsOn = c.External // where no kernel's table is the switch's
	must(t, os.Remove(filepath.Join(c.RunDir, "ovs-vswitchd.pid")))
	c.flags = append(c.flags, "--openflow", olderSwitch(t, c))
	c.put(s, slice(s, 8080, at(c.pods[1].IP4)))
	c.run()
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	lacks, warnings := c.lacks(t)
	if !strings.Contains(warnings, "lacks deleting conntrack entries over OpenFlow") || !strings.Contains(warnings, "ovs-vswitchd.pid") {
		t.Errorf("status warns %q", warnings)
	}
	if strings.Contains(lacks, "deleting conntrack entries") {
		t.Errorf("status says that the switch lacks %q, as if that were mended", lacks)
	}
}
