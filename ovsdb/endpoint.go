package ovsdb

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
)

// DefaultEndpoint is where the packages of Open vSwitch put the socket.
const DefaultEndpoint = "unix:/var/run/openvswitch/db.sock"

// endpoint is where the server listens.
type endpoint struct {
	network string // "unix" or "tcp"
	address string // a path, or HOST:PORT
	tls     bool   // only with "tcp"
}

// parseEndpoint reads a connection method of ovsdb(7).
func parseEndpoint(s string) (endpoint, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "unix":
		if !filepath.IsAbs(rest) {
			return endpoint{}, fmt.Errorf("ovsdb endpoint %q: the socket's path must begin with a slash", s)
		}
		return endpoint{network: kind, address: rest}, nil
	case "tcp", "ssl":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" || strings.ContainsAny(rest, "/?#@ ") {
			return endpoint{}, fmt.Errorf("ovsdb endpoint %q: want %s:HOST:PORT", s, kind)
		}
		return endpoint{network: "tcp", address: rest, tls: kind == "ssl"}, nil
	}
	return endpoint{}, fmt.Errorf("ovsdb endpoint %q: want unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT", s)
}

// ManagementSocket returns the path of a bridge's OpenFlow management socket, which
// ovs-vswitchd creates in the directory of the database's socket. It fails for an
// endpoint that is not a unix socket.
func ManagementSocket(endpoint, bridge string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix:")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("ovsdb endpoint %q does not tell where the OpenFlow socket of %s is; "+
			"name it with --openflow", endpoint, bridge)
	}
	if bridge == "" || strings.ContainsAny(bridge, "/\x00") || bridge == "." || bridge == ".." {
		return "", fmt.Errorf("%q is no name of a bridge", bridge)
	}
	return filepath.Join(filepath.Dir(path), bridge+".mgmt"), nil
}
