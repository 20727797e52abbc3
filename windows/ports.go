package windows

import (
	"fmt"
	"net"
)

// freePort returns an error if the system has no dynamic TCP port left. Load balancers then fail for new connections that need one.
func freePort() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("this node has no free dynamic TCP port, so that new connections fail: find the program that holds them (Get-NetTCPConnection | Group-Object OwningProcess; "+
			"netsh int ipv4 show excludedportrange tcp): %w", err)
	}
	return l.Close()
}
