package traffic

import (
	"io"
	"net"
)

// requestSize is what a client sends and gets back, in bytes.
const requestSize = 64

// BlockSize is what a client sends for each request with Options.Blocks, in bytes; it gets requestSize back.
const BlockSize = 1 << 20

// window bounds what is under way on a connection of Sink's, in bytes. More than the queue before ovs-vswitchd takes
// (net.core.rmem_default, packets counted with their overhead) would be lost: without it a fifth of all bytes was sent again, and as each loss may
// cost TCP's least timeout of 200 ms, throughput was a matter of luck.
const window = 64 << 10

// Sink answers each block that a connection brings, until the listener is closed.
func Sink(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if err := c.(*net.TCPConn).SetReadBuffer(window); err != nil {
			_ = c.Close()
			continue
		}
		go func() { // ends with the connection
			defer c.Close()
			buf := make([]byte, BlockSize)
			for {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
				if _, err := c.Write(buf[:requestSize]); err != nil {
					return
				}
			}
		}()
	}
}

// Serve sends back what each connection brings, until the listener is closed.
func Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // ends with the connection
			defer c.Close()
			buf := make([]byte, requestSize)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}
