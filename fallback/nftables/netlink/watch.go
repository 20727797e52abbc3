//go:build linux

package netlink

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Group joins the sockets of one network namespace that program the tables with those that receive
// notifications. While much is programmed it silences the latter, because the kernel builds a notification
// for each element, in the commit, if there is a receiver of any family. The zero Group has no sockets. Its
// methods may be called from any goroutine.
type Group struct {
	mu      sync.Mutex // also held during each commit
	watches map[*Watch]bool
	silent  int // calls of Silence without Listen
	// generation is that of the tables after the Group's last commit since the watches are silent; changed is
	// set if another program has committed meanwhile.
	generation uint32
	changed    bool
}

// Open returns a Conn of the Group.
func (g *Group) Open() (*Conn, error) {
	c, err := Open()
	if err == nil {
		c.group = g
	}
	return c, err
}

// commit commits a Batch. While the watches are silent, it looks for commits of other programs: each makes
// one generation of the tables. One without effect makes none, so that the Group's own are not just counted.
func (g *Group) commit(c *Conn, b *Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.silent == 0 {
		return c.transact(b, true)
	}
	before, err := c.generation()
	if err == nil {
		err = c.transact(b, true)
	}
	own := uint32(1) // generations at most that this commit made
	if _, refused := errors.AsType[*RefusedError](err); refused {
		own = 0
	} else if err != nil {
		g.changed = true // perhaps
		return err
	}
	after, problem := c.generation()
	g.changed = g.changed || problem != nil || before != g.generation || after-before > own
	g.generation = after
	return err
}

// Silence keeps the watches from receiving, until Listen was called as often. c is used for a question to the
// kernel.
func (g *Group) Silence(c *Conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.silent == 0 {
		now, err := c.generation()
		if err != nil {
			return err
		}
		g.generation, g.changed = now, false
		for w := range g.watches {
			if err := w.member(unix.NETLINK_DROP_MEMBERSHIP); err != nil {
				return errors.Join(err, g.listen())
			}
		}
	}
	g.silent++
	return nil
}

// Listen ends one Silence. After the last, all watches receive. If another program has changed a table
// meanwhile, they report a change, because it may have been nkp's; also if c, of which that is asked, is nil.
func (g *Group) Listen(c *Conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.silent--; g.silent > 0 {
		return nil
	}
	err := g.listen()
	var now uint32
	if c != nil {
		var problem error
		now, problem = c.generation()
		err = errors.Join(err, problem)
	}
	if g.changed || err != nil || c == nil || now != g.generation {
		for w := range g.watches {
			w.notify()
		}
	}
	return err
}

// listen has all watches receive. g.mu must be held.
func (g *Group) listen() (err error) {
	for w := range g.watches {
		err = errors.Join(err, w.member(unix.NETLINK_ADD_MEMBERSHIP))
	}
	return err
}

// Watch reports that another program changed nkp's table, by the kernel's notifications. Make it with
// Group.Watch.
type Watch struct {
	// Changed has a token once the table was changed, or may have been because notifications were lost.
	Changed chan struct{}

	group  *Group
	family k8s.Family
	own    uint32   // the port of the socket whose changes do not count
	file   *os.File // of the socket, for the runtime's poller
	raw    syscall.RawConn
	done   sync.WaitGroup
	once   sync.Once
}

// Watch returns a Watch that ignores the changes of the Conn with port own. It receives nothing before the
// next Listen.
func (g *Group) Watch(f k8s.Family, own uint32) (*Watch, error) {
	fd, _, err := open(0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, err
	}

	w := &Watch{
		Changed: make(chan struct{}, 1),
		group:   g,
		family:  f,
		own:     own,
		file:    os.NewFile(uintptr(fd), "netlink"),
	}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		_ = w.file.Close()
		return nil, err
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watches == nil {
		g.watches = map[*Watch]bool{}
	}
	g.watches[w] = true
	return w, nil
}

// member joins or leaves the kernel's group for notifications.
func (w *Watch) member(option int) (err error) {
	problem := w.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES)
	})
	if err = errors.Join(err, problem); err == nil {
		w.once.Do(func() { w.done.Go(w.run) })
	}
	return err
}

// Close ends the Watch and waits for its goroutine.
func (w *Watch) Close() {
	w.group.mu.Lock()
	delete(w.group.watches, w)
	w.group.mu.Unlock()
	_ = w.file.Close()
	w.done.Wait()
}

// run receives notifications until Close.
func (w *Watch) run() {
	c := Conn{buf: make([]byte, 1<<16)}
	for {
		n := 0
		var err error
		closed := w.raw.Read(func(fd uintptr) bool {
			c.fd = int(fd)
			n, err = c.receive(unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case closed != nil:
			return
		case err != nil: // ENOBUFS: notifications were lost
			w.notify()
			continue
		}
		for h, err := range messages(c.buf[:n]) {
			if err != nil || h.port != w.own && h.kind>>8 == subsystem &&
				len(h.data) >= genericSize && h.data[0] == family(w.family) &&
				text(attribute(h.data[genericSize:], tableName)) == rules.TableName {
				w.notify()
			}
		}
	}
}

func (w *Watch) notify() {
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}
