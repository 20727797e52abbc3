//go:build linux

package netlink

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nft"
	"github.com/nkp-proxy/nkp/k8s"
)

// Watch reports that another program changed nkp's table, by the kernel's notifications. Make it with NewWatch.
type Watch struct {
	// Changed has a token once the table was changed, or may have been because notifications were lost.
	Changed chan struct{}

	family k8s.Family
	own    uint32   // the port of the socket whose changes do not count
	file   *os.File // of the socket, for the runtime's poller
	done   sync.WaitGroup
	once   sync.Once
}

// NewWatch returns a Watch that ignores the changes of the Conn with port own. It receives nothing before Begin.
func NewWatch(f k8s.Family, own uint32) (*Watch, error) {
	fd, _, err := open(0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, err
	}
	return &Watch{Changed: make(chan struct{}, 1), family: f, own: own, file: os.NewFile(uintptr(fd), "netlink")}, nil
}

// Begin begins to receive. It is for use after the first changes, because the kernel writes a notification for each element if there is a
// receiver. Further calls do nothing.
func (w *Watch) Begin() (err error) {
	w.once.Do(func() {
		raw, problem := w.file.SyscallConn()
		if err = problem; err != nil {
			return
		}
		problem = raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, nfnlGroupNFTables)
		})
		if err = errors.Join(err, problem); err == nil {
			w.done.Go(func() { w.run(raw) })
		}
	})
	return err
}

// Close ends the Watch and waits for its goroutine.
func (w *Watch) Close() {
	_ = w.file.Close()
	w.done.Wait()
}

// run receives notifications until Close.
func (w *Watch) run(raw syscall.RawConn) {
	c := Conn{buf: make([]byte, 1<<16)}
	for {
		n := 0
		var err error
		closed := raw.Read(func(fd uintptr) bool {
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
			if err != nil || h.port != w.own && h.kind>>8 == subsystem && len(h.data) >= genericSize && h.data[0] == family(w.family) &&
				text(attribute(h.data[genericSize:], tableName)) == nft.TableName {
				w.notify()
			}
		}
	}
}

// tableName is the attribute of the table's name, the same in all kinds of messages about what is in a table (NFTA_TABLE_NAME and
// others).
const tableName = unix.NFTA_TABLE_NAME

func (w *Watch) notify() {
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}
