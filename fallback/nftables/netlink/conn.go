//go:build linux

package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Conn is a socket for nf_tables. It belongs to one goroutine.
type Conn struct {
	fd      int
	port    uint32 // of the socket, which the kernel puts into the notifications of its changes
	maxSend int    // the largest batch that one call can send, in bytes
	buf     []byte
	seq     uint32
	group   *Group // nil: none
}

// sendBuffer and receiveBuffer are the sizes of a socket's buffers, in bytes, where the process may set them
// beyond the system's limits. A batch is sent by one call, so that the buffer must hold it.
const (
	sendBuffer    = 40 << 20
	receiveBuffer = 4 << 20
)

// answerTimeout is how long the kernel may take for the next part of a dump, in seconds. It answers within
// the call, so that this ends the wait only if an answer is lost.
const answerTimeout = 10

// Open returns a Conn.
func Open() (*Conn, error) {
	fd, port, err := open(0)
	if err != nil {
		return nil, err
	}
	c := &Conn{fd: fd, port: port, buf: make([]byte, 1<<18)}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		// Without NET_ADMIN in the first user namespace: as much as the system allows.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	c.maxSend = size / 2 // the kernel doubles the number for its overhead
	return c, nil
}

// open returns a netlink socket that is in the groups, and its port.
func open(groups uint32) (fd int, port uint32, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, 0, fmt.Errorf("netlink socket: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	timeout := unix.Timeval{Sec: answerTimeout}
	// Errors come without the refused message.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout))
	if err == nil {
		var name unix.Sockaddr
		if name, err = unix.Getsockname(fd); err == nil {
			return fd, name.(*unix.SockaddrNetlink).Pid, nil
		}
	}
	_ = unix.Close(fd)
	return 0, 0, fmt.Errorf("netlink socket: %w", err)
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Port returns the socket's port, which the kernel names as the origin of its changes.
func (c *Conn) Port() uint32 { return c.port }

// MaxSend returns the size of the largest Batch that can be committed, in bytes.
func (c *Conn) MaxSend() int { return min(c.maxSend, sendBuffer) - 1024 }

// MaxBatch returns the size of the largest Batch that should be committed, in bytes: other programs wait
// meanwhile.
func (c *Conn) MaxBatch() int { return min(c.MaxSend(), 8<<20) }

// ErrNoAnswer is returned when the kernel does not answer in time. The socket is of no use any more, because
// the answer may still come.
var ErrNoAnswer = fmt.Errorf("nf_tables did not answer within %d s", answerTimeout)

// RefusedError is returned when the kernel refused changes of a Batch. Nothing of the Batch is in force.
type RefusedError struct {
	// Tags maps the tags of the refused changes to the kernel's reasons. NoTag is among them if a change
	// without a tag was refused, or the Batch as a whole.
	Tags map[int]error
}

func (e *RefusedError) Error() string {
	tags := slices.Sorted(maps.Keys(e.Tags))
	return fmt.Sprintf("nf_tables refused %d changes, the first: %v", len(tags), e.Tags[tags[0]])
}

// Unwrap returns the reasons.
func (e *RefusedError) Unwrap() []error { return slices.Collect(maps.Values(e.Tags)) }

// Commit makes the changes of a Batch in force, all of them or none. The error is a *RefusedError if the
// kernel refused some.
func (c *Conn) Commit(b *Batch) error {
	if c.group == nil {
		return c.transact(b, true)
	}
	return c.group.commit(c, b)
}

// Check has the kernel judge a Batch as Commit does, and changes nothing.
func (c *Conn) Check(b *Batch) error { return c.transact(b, false) }

// transact sends a Batch. The kernel drops one that has no end.
func (c *Conn) transact(b *Batch, commit bool) error {
	if b.err != nil || b.Empty() {
		return b.err
	}
	m := message{b: slices.Clone(b.m.b)}
	last := lastMessage(m.b)
	flags := binary.NativeEndian.Uint16(m.b[last+6:])
	binary.NativeEndian.PutUint16(m.b[last+6:], flags|unix.NLM_F_ACK)
	if commit {
		m.end(m.begin(batchEnd, 0, uint32(len(b.tags)), unix.NFPROTO_UNSPEC, subsystem))
	}
	c.drain()
	if err := c.send(m.b); err != nil {
		return fmt.Errorf("send %d changes (%d bytes) to nf_tables: %w", b.Messages(), len(m.b), err)
	}
	return c.answers(b)
}

func lastMessage(b []byte) (last int) {
	for at := 0; at < len(b); at += int(binary.NativeEndian.Uint32(b[at:])+3) &^ 3 {
		last = at
	}
	return last
}

// answers reads the kernel's answers to a Batch. The kernel has written all of them before the call that sent
// the Batch returned. If they do not fit into the socket's buffer, those that did are returned: they are
// refusals, because a Batch has one acknowledgement.
func (c *Conn) answers(b *Batch) error {
	refused := map[int]error{}
	acknowledged := false
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		} else if errors.Is(err, unix.ENOBUFS) {
			continue
		} else if err != nil {
			return fmt.Errorf("read the answers of nf_tables: %w", err)
		}

		for h, err := range messages(c.buf[:n]) {
			if err != nil {
				return err
			}
			if h.kind != unix.NLMSG_ERROR || len(h.data) < 4 {
				continue
			}
			code := int32(binary.NativeEndian.Uint32(h.data))
			if code == 0 {
				acknowledged = true
				continue
			}

			tag := NoTag
			if int(h.seq) < len(b.tags) {
				tag = b.tags[h.seq]
			}
			if refused[tag] == nil {
				refused[tag] = fmt.Errorf("nf_tables: %w", unix.Errno(-code))
			}
		}
	}

	switch {
	case len(refused) > 0:
		return &RefusedError{refused}
	case !acknowledged:
		return fmt.Errorf("transaction of %d changes: %w", b.Messages(), ErrNoAnswer)
	}
	return nil
}

// drain discards answers that an earlier call did not read.
func (c *Conn) drain() {
	for {
		if _, err := c.receive(unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

func (c *Conn) send(b []byte) error {
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive reads messages of the kernel into the buffer, and discards those of other processes. It enlarges
// the buffer if a message does not fit.
func (c *Conn) receive(flags int) (n int, err error) {
	for {
		n, _, err = unix.Recvfrom(c.fd, c.buf, flags|unix.MSG_PEEK|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n > len(c.buf):
			c.buf = make([]byte, 2*n)
		}
		var from unix.Sockaddr
		n, from, err = unix.Recvfrom(c.fd, c.buf, flags)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if sender, ok := from.(*unix.SockaddrNetlink); err != nil || ok && sender.Pid == 0 {
			return n, err
		}
	}
}

// header is a message from the kernel.
type header struct {
	kind, flags uint16
	seq, port   uint32
	data        []byte
}

var errIncomplete = errors.New("nf_tables: a message is incomplete")

// messages yields the messages in a buffer, and errIncomplete if it ends within one.
func messages(b []byte) iter.Seq2[header, error] {
	return func(yield func(header, error) bool) {
		for len(b) > 0 {
			size := 0
			if len(b) >= headerSize {
				size = int(binary.NativeEndian.Uint32(b))
			}
			if size < headerSize || size > len(b) {
				yield(header{}, errIncomplete)
				return
			}
			h := header{
				binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]),
				binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]),
				b[headerSize:size],
			}
			if !yield(h, nil) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// rawAttributes yields the attributes in a buffer: kinds with their flags, and data.
func rawAttributes(b []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeSize {
			size := int(binary.NativeEndian.Uint16(b))
			if size < attributeSize || size > len(b) ||
				!yield(binary.NativeEndian.Uint16(b[2:]), b[attributeSize:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// attributes yields the attributes in a buffer: kinds without flags, and data.
func attributes(b []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for kind, data := range rawAttributes(b) {
			if !yield(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data) {
				return
			}
		}
	}
}

// attribute returns the first attribute of a kind; nil if there is none.
func attribute(b []byte, kind uint16) []byte {
	for k, data := range attributes(b) {
		if k == kind {
			return data
		}
	}
	return nil
}
