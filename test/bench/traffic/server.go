package traffic

import (
	"net"
)

// requestSize is what a client sends and gets back, in bytes.
const requestSize = 64

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
