package hnsfake

import (
	"io"
	"net"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Types of notifications (HCN_NOTIFICATIONS, computenetwork.h).
const (
	networkCreated    = 2
	networkDeleted    = 4
	serviceDisconnect = 0x01000000
)

// registration is a caller of HcnRegisterServiceCallback. Notifications wait in events; more than it holds are lost.
type registration struct{ events chan uint32 }

// watch registers for notifications.
func (s *Server) watch() (*registration, Reply) {
	r := s.Call("HcnRegisterServiceCallback", "") // no argument is text
	if r.HResult != 0 {
		return nil, r
	}
	w := &registration{make(chan uint32, 100)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered[w] = true
	return w, r
}

// unwatch ends a registration; it may have ended.
func (s *Server) unwatch(w *registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registered[w] {
		delete(s.registered, w)
		close(w.events)
	}
}

// notify sends a notification. s.mu is held.
func (s *Server) notify(kind uint32) {
	for w := range s.registered {
		select {
		case w.events <- kind:
		default:
		}
	}
}

// Disconnect ends all registrations, as HNS does when its service stops.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify(serviceDisconnect)
	for w := range s.registered {
		close(w.events)
	}
	clear(s.registered)
}

// Watch implements hns.Host.
func (h host) Watch(notify func(lost bool)) (stop func(), err error) {
	w, r := h.s.watch()
	if w == nil {
		return nil, hns.ParseError("HcnRegisterServiceCallback", r.HResult, r.Record)
	}
	go func() { // ends when the registration does
		for kind := range w.events {
			notify(kind == serviceDisconnect)
		}
	}()
	return func() { h.s.unwatch(w) }, nil
}

// serveWatch answers HcnRegisterServiceCallback on a connection of its own: a reply for the call, then one for each notification, whose
// HRESULT is the type.
func (s *Server) serveWatch(c net.Conn) error {
	w, r := s.watch()
	if err := writeReply(c, r); err != nil || w == nil {
		return err
	}
	defer s.unwatch(w)
	go func() { // ends with the connection
		_, _ = io.Copy(io.Discard, c)
		s.unwatch(w)
	}()
	for kind := range w.events {
		if err := writeReply(c, Reply{HResult: kind}); err != nil {
			return err
		}
	}
	return io.EOF
}
