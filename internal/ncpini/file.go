package ncpini

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// File is what nkp takes from ncp.ini. A field is "" if the file does not set it.
type File struct {
	Bridge, Uplink string // of [nsx_node_agent], else of [nsx_kube_proxy]
	Server         string // URL of the API server
	TokenFile      string
	CAFile         string
	CertFile       string
	KeyFile        string
	// Unused names the options that the file sets and nkp does not use, section by section, on one line; "":
	// there are none.
	Unused string
}

// Load reads ncp.ini. An error names the file, and the line or the option.
func Load(path string) (*File, error) {
	// A named pipe without a writer could not even be opened.
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file with options", path)
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()

	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	options, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	f := &File{}
	r := reader{options: options, used: make([]bool, len(options))}
	f.Bridge = r.first("ovs_bridge", "nsx_node_agent", "nsx_kube_proxy")
	f.Uplink = r.first("ovs_uplink_port", "nsx_node_agent", "nsx_kube_proxy")
	f.server(&r)
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", path, r.err)
	}
	f.Unused = r.unused()
	return f, nil
}

// server reads the API server's address, and what nkp authenticates itself and the server with.
func (f *File) server(r *reader) {
	host, port := r.first("apiserver_host_ip", "k8s"), r.first("apiserver_host_port", "k8s")
	f.TokenFile, f.CAFile = r.first("client_token_file", "k8s"), r.first("ca_file", "k8s")
	f.CertFile, f.KeyFile = r.first("client_cert_file", "k8s"), r.first("client_private_key_file", "k8s")
	if host == "" {
		return // NSX's programs take the address from their pod's environment, as nkp does
	}

	if strings.ContainsAny(host, ", \n") {
		r.fail("k8s", "apiserver_host_ip", "NSX and nkp take one address: "+
			"write that of the API servers' load balancer, or pass --kubeconfig")
	}
	host, port = strings.Trim(host, "[]"), cmp.Or(port, "443")
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/@?#%[]") {
		r.fail("k8s", "apiserver_host_ip",
			"it is no address or name: write it as 192.0.2.10, and the port as apiserver_host_port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		r.fail("k8s", "apiserver_host_port", "it is no port")
	}
	f.Server = "https://" + net.JoinHostPort(host, port)
}

// reader looks up options and remembers which. It keeps the first error.
type reader struct {
	options []option
	used    []bool // options that were looked up
	err     error
}

// first returns the value of an option in the first of the sections that sets it; "": none does. Of several
// assignments in one section the last counts.
func (r *reader) first(name string, sections ...string) (value string) {
	for _, section := range sections {
		for i, o := range r.options {
			if o.section != section || o.name != name {
				continue
			}
			r.used[i], value = true, o.value
		}
		if strings.Contains(value, "$") {
			r.fail(section, name,
				"it refers to another option, which nkp does not resolve: write the value out")
		}
		if value != "" {
			break
		}
	}
	return value
}

func (r *reader) fail(section, name, why string) {
	if r.err == nil {
		r.err = fmt.Errorf("[%s] %s: %s", section, name, why)
	}
}

// unused names the options that were not looked up, section by section. It names no values: some are
// passwords.
func (r *reader) unused() string {
	text, section := "", ""
	for i, o := range r.options {
		switch {
		case r.used[i]:
		case o.section == section:
			text += ", " + o.name
		default:
			section = o.section
			text += "; [" + section + "] " + o.name
		}
	}
	return strings.TrimPrefix(text, "; ")
}
