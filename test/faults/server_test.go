//go:build linux

package faults

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// serve answers each TCP connection to a port of a host with a line, the host's name, and then echoes what comes. It is
// cheaper than the testbed's server. The bed's end does not end it, the end of the process does.
func serve(h *testbed.Host, port int) error {
	l, err := h.Listen(":" + strconv.Itoa(port))
	if err != nil {
		return err
	}
	hello := []byte(h.Name + "\n")
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // the client is gone already
			}
			go func() { // ends with the connection
				defer c.Close()
				if _, err := c.Write(hello); err == nil {
					io.Copy(struct{ io.Writer }{c}, bufio.NewReaderSize(c, 64))
				}
			}()
		}
	}()
	return nil
}
