package windows

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf16"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// sourceVIP returns the source VIP of an overlay network without --source-vip: the address of the CNI plugin's endpoint
// SourceVIPEndpoint, or of the endpoint that kube-proxy or nkp made for it before. Flannel makes none.
func (p *Plane) sourceVIP(f *plan.Facts) (netip.Addr, error) {
	a, err := p.addressOf(p.opts.SourceVIPEndpoint)
	if err != nil || a.IsValid() {
		return a, err
	}
	if a, err = p.proxysSourceVIP(f); err != nil || a.IsValid() {
		return a, err
	}
	return a, &notReady{fmt.Sprintf("an overlay network needs a source VIP, and HNS has no endpoint named %s to take it from: set --source-vip "+
		"to an address of this node's pod range that no pod has; %s", p.opts.SourceVIPEndpoint, flannelHint())}
}

// proxysSource stands in Plane.named for the endpoint that a proxy made for the source VIP; no endpoint has this name.
const proxysSource = ""

// proxysSourceVIP returns the address of the endpoint that a Service proxy made for the source VIP: on this host, with the host's
// MAC address. The zero Addr: there is none, or more than one. It searches once for each network, because that takes a read of all
// endpoints.
func (p *Plane) proxysSourceVIP(f *plan.Facts) (found netip.Addr, err error) {
	if a, ok := p.named[proxysSource]; ok {
		return a, nil
	}
	list, err := p.host.Endpoints(f.Network.ID)
	if err != nil {
		return found, fmt.Errorf("cannot look for the source VIP among the endpoints of HNS: %w", err)
	}
	want := hns.Endpoint{MacAddress: f.HostMAC}
	n := 0
	for _, e := range list {
		if want.IpConfigurations = e.IpConfigurations; len(e.Addrs()) == 1 && e.Addrs()[0].Is4() && hns.SameEndpoint(e, &want) {
			found = e.Addrs()[0]
			n++
		}
	}
	if n != 1 { // several: which one is not known
		found = netip.Addr{}
	}
	p.named[proxysSource] = found
	return found, nil
}

// flannelHint returns where Flannel's start scripts for kube-proxy keep the source VIP, with its value if the file is there. nkp does
// not use the value by itself, because any user may change these files.
func flannelHint() string {
	drive := os.Getenv("SystemDrive") + string(filepath.Separator)
	files := []string{filepath.Join(drive, "k", "sourceVip.json"), filepath.Join(drive, "sourcevip", "sourceVip.json"), filepath.Join(drive, "k", "kube-proxy", "sourceVip.json")}
	for _, file := range files {
		if a := addressInCNIResult(file); a.IsValid() {
			return fmt.Sprintf("Flannel's scripts for kube-proxy have reserved %s (%s)", a, file)
		}
	}
	return "Flannel's scripts for kube-proxy reserve one and keep it in " + strings.Join(files, " or ")
}

// maxCNIResult bounds what is read of such a file, in bytes.
const maxCNIResult = 64 << 10

// addressInCNIResult returns the first address of a CNI result in a file (CNI 0.2: ip4.ip, later versions: ips); the zero Addr: it has none.
func addressInCNIResult(file string) (a netip.Addr) {
	r, err := os.Open(file)
	if err != nil {
		return a
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxCNIResult))
	if err != nil {
		return a
	}
	if u, ok := bytes.CutPrefix(data, []byte{0xff, 0xfe}); ok { // PowerShell's Out-File writes UTF-16
		units := make([]uint16, len(u)/2)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(u[2*i:])
		}
		data = []byte(string(utf16.Decode(units)))
	}
	var result struct {
		IP4 struct{ IP string }
		IPs []struct{ Address string }
	}
	if json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &result) != nil {
		return a
	}
	text := result.IP4.IP
	if text == "" && len(result.IPs) > 0 {
		text = result.IPs[0].Address
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return a
	}
	return p.Addr()
}
