package fallback

import (
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
