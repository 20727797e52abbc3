//go:build linux

package testbed

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	"github.com/nkp-proxy/nkp/test/wait"
)

// Every server's answer begins with the host's name and the client's address as
// the server saw it, separated by a space:
//
//	pod-11 10.0.0.12:43210

// Server is a running server. Close ends it and its connections; the bed's end
// does so too.
type Server struct {
	closer io.Closer
	forget func()
	once   sync.Once
	err    error
}

// Close ends the server. It may be called again.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.forget()
		s.err = s.closer.Close()
	})
	return s.err
}

func (h *Host) server(c io.Closer) (*Server, error) {
	forget, err := h.own(c)
	if err != nil {
		return nil, err
	}
	return &Server{closer: c, forget: forget}, nil
}

// Listen listens in the host's namespace. The address is as for net.Listen; TCP
// only.
func (h *Host) Listen(addr string) (net.Listener, error) {
	var l net.Listener
	err := h.ns.do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: %w", h.Name, err)
	}
	return l, nil
}

// ListenPacket listens for UDP datagrams in the host's namespace.
func (h *Host) ListenPacket(addr string) (net.PacketConn, error) {
	var c net.PacketConn
	err := h.ns.do(func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp", addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: %w", h.Name, err)
	}
	return c, nil
}

// tcpServer accepts connections and closes them with itself.
type tcpServer struct {
	net.Listener
	mu    sync.Mutex // protects conns, which handlers and Close share
	conns map[net.Conn]struct{}
}

func (s *tcpServer) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	return err
}

func (s *tcpServer) serve(name string) {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		closed := s.conns == nil
		if !closed {
			s.conns[c] = struct{}{}
		}
		s.mu.Unlock()
		if closed {
			_ = c.Close()
			return
		}
		go func() { // ends with the connection
			greetAndEcho(name, c)
			_ = c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, c)
		}()
	}
}

func greetAndEcho(name string, c net.Conn) {
	if _, err := fmt.Fprintf(c, "%s %s\n", name, remote(c.RemoteAddr())); err != nil {
		return
	}
	// Not io.Copy: lines come back whole, and the last one without a newline too.
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

// remote writes an address that a dual-stack socket saw: IPv4 as IPv4.
func remote(a net.Addr) string {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()).String()
}

// ServeTCP answers each connection to a port with a line that names the host
// and the client, and then echoes lines until the client closes.
func (h *Host) ServeTCP(port int) (*Server, error) {
	l, err := h.Listen(":" + strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	t := &tcpServer{Listener: l, conns: map[net.Conn]struct{}{}}
	go t.serve(h.Name) // ended by Close
	return h.server(t)
}

// ServeHTTP answers each request with the host's name and the client's address;
// a request to /bytes/N gets N bytes more.
func (h *Host) ServeHTTP(port int) (*Server, error) {
	l, err := h.Listen(":" + strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	hello := func(w http.ResponseWriter, r *http.Request) {
		addr := r.RemoteAddr
		if p, err := netip.ParseAddrPort(addr); err == nil {
			addr = netip.AddrPortFrom(p.Addr().Unmap(), p.Port()).String()
		}
		fmt.Fprintf(w, "%s %s\n", h.Name, addr)
	}
	mux.HandleFunc("/", hello)
	mux.HandleFunc("/bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "bad number of bytes", http.StatusBadRequest)
			return
		}
		hello(w, r)
		_, _ = io.CopyN(w, zeros{}, n)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: wait.Limit}
	go func() { _ = s.Serve(l) }() // ended by Close
	return h.server(s)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
