package sysctl

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// tree makes a file tree of settings in a temporary directory.
func tree(t *testing.T, files map[string]string) kernel {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return kernel{root: root, log: slog.New(slog.DiscardHandler)}
}

const ct = "proc/sys/net/netfilter/nf_conntrack_"

// linux612 is what a kernel comes with.
func linux612() map[string]string {
	return map[string]string{
		ct + "max": "65536", ct + "buckets": "16384", ct + "tcp_timeout_established": "432000", ct + "tcp_timeout_close_wait": "60",
		ct + "tcp_be_liberal": "0", ct + "udp_timeout": "30", ct + "udp_timeout_stream": "120",
		"sys/devices/system/cpu/online": "0-3,8-11",
	}
}

func (k kernel) values(t *testing.T, names ...string) string {
	t.Helper()
	var values []string
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(k.root, ct+n))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, strings.TrimSpace(string(data)))
	}
	return strings.Join(values, " ")
}

func TestApply(t *testing.T) {
	all := []string{"max", "buckets", "tcp_timeout_established", "tcp_timeout_close_wait", "tcp_be_liberal", "udp_timeout", "udp_timeout_stream"}
	for _, c := range []struct {
		name  string
		set   Settings
		extra map[string]string
		want  string
	}{
		{"kube-proxy's defaults", Defaults(), nil, "262144 65536 86400 3600 0 30 120"},
		{"nothing wanted", Settings{}, nil, "65536 16384 432000 60 0 30 120"},
		{"everything", Settings{MaxPerCore: 10000, Min: 1, TCPEstablished: time.Minute, TCPCloseWait: time.Second, TCPBeLiberal: true,
			UDP: 10 * time.Second, UDPStream: 500 * time.Millisecond}, nil, "80000 20000 60 1 1 10 1"},
		{"a larger table stays", Defaults(), map[string]string{ct + "max": "2000000"}, "2000000 65536 86400 3600 0 30 120"},
		{"an unbounded table stays", Defaults(), map[string]string{ct + "max": "0"}, "0 65536 86400 3600 0 30 120"},
		{"a larger hash stays", Defaults(), map[string]string{ct + "buckets": "500000"}, "262144 500000 86400 3600 0 30 120"},
		{"be-liberal is not taken back", Defaults(), map[string]string{ct + "tcp_be_liberal": "1"}, "262144 65536 86400 3600 1 30 120"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := linux612()
			for name, text := range c.extra {
				files[name] = text
			}
			k := tree(t, files)
			if w := k.apply(c.set); len(w) > 0 {
				t.Errorf("warnings %q", w)
			}
			if got := k.values(t, all...); got != c.want {
				t.Errorf("%s are\n%s, want\n%s", strings.Join(all, " "), got, c.want)
			}
		})
	}
}

// What is as wanted is not written: a read-only tree that is right needs no warning.
func TestApplyWritesOnlyWhatDiffers(t *testing.T) {
	k := tree(t, linux612())
	k.apply(Defaults())
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	var files []string
	for name := range linux612() {
		path := filepath.Join(k.root, name)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	if w := k.apply(Defaults()); len(w) > 0 {
		t.Errorf("warnings %q", w)
	}
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().Equal(old) {
			t.Errorf("%s was written again", path)
		}
	}
}

func TestApplyWithoutConnectionTracking(t *testing.T) {
	w := tree(t, nil).apply(Defaults())
	if len(w) != 1 || !strings.Contains(w[0], "nf_conntrack") {
		t.Errorf("warnings %q", w)
	}
}

// One setting that this kernel does not have, or that makes no sense, does not hold up the others.
func TestApplyGoesOn(t *testing.T) {
	files := linux612()
	delete(files, ct+"tcp_timeout_close_wait")
	files[ct+"tcp_timeout_established"] = "soon"
	k := tree(t, files)
	s := Defaults()
	s.UDP = 5 * time.Second
	w := k.apply(s)
	if len(w) != 2 || !strings.Contains(w[0], "tcp_timeout_established is not a number") || !strings.Contains(w[1], "cannot read sysctl net.netfilter.nf_conntrack_tcp_timeout_close_wait") {
		t.Errorf("warnings %q", w)
	}
	if got := k.values(t, "udp_timeout"); got != "5" {
		t.Errorf("udp_timeout is %s", got)
	}
}

func TestCountList(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-3,8,10-11": 7} {
		if n, err := countList(list); n != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", list, n, err, want)
		}
	}
	for _, list := range []string{"", "a", "1-", "1,,2"} {
		if n, err := countList(list); err == nil {
			t.Errorf("%q: %d, no error", list, n)
		}
	}
}

// In a namespace of its own the real kernel takes the timeouts and keeps the size, which is the machine's, to itself.
func TestApplyToAKernel(t *testing.T) {
	testbed.Isolate(t)
	// The thread's own view: /proc/sys/net is that of the thread that opens it.
	k := kernel{root: "/", log: slog.New(slog.DiscardHandler)}
	before, err := k.get("net.netfilter.nf_conntrack_max")
	if err != nil {
		t.Fatalf("this kernel has no connection tracking: %v", err)
	}
	s := Defaults()
	s.TCPBeLiberal, s.UDP, s.UDPStream = true, 17*time.Second, 171*time.Second
	s.Min = 1 << 30 // more than any machine has
	w := k.apply(s)
	if len(w) != 1 || !strings.Contains(w[0], "nf_conntrack_max") || !strings.Contains(w[0], "permission denied") {
		t.Errorf("warnings %q, want one that the size is not ours to set", w)
	}
	for name, want := range map[string]int{
		"nf_conntrack_tcp_timeout_established": 86400, "nf_conntrack_tcp_timeout_close_wait": 3600, "nf_conntrack_tcp_be_liberal": 1,
		"nf_conntrack_udp_timeout": 17, "nf_conntrack_udp_timeout_stream": 171, "nf_conntrack_max": before,
	} {
		if got, err := k.get(netfilter + name); got != want || err != nil {
			t.Errorf("%s is %d, %v; want %d", name, got, err, want)
		}
	}
	s.MaxPerCore = 0
	if w := k.apply(s); !slices.Equal(w, nil) {
		t.Errorf("second time: %q", w)
	}
}
