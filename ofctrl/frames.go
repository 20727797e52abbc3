package ofctrl

import (
	"fmt"
	"io"
)

// readBuffer is how much is read from the switch at once. It must hold the longest message.
const readBuffer = 256 << 10

// frameReader splits a stream into messages. A message never includes bytes beyond those that its length
// field covers. The reader buffers at most readBuffer bytes.
type frameReader struct {
	r      io.Reader
	buf    []byte
	lo, hi int    // buf[lo:hi] is read and not yet handed out
	onRead func() // called when something came; may be nil
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: r, buf: make([]byte, readBuffer)}
}

// next returns the next message. The slice is valid until the following call.
func (fr *frameReader) next() (frame, error) {
	if err := fr.fill(headerLen); err != nil {
		return nil, err
	}
	n := int(u16(fr.buf[fr.lo+2:]))
	if n < headerLen {
		return nil, fmt.Errorf("%w: message with a length of %d bytes", ErrProtocol, n)
	}
	if err := fr.fill(n); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f := frame(fr.buf[fr.lo : fr.lo+n : fr.lo+n])
	fr.lo += n
	return f, nil
}

// fill reads until n bytes are at hand. io.EOF means that the stream ended between messages.
func (fr *frameReader) fill(n int) error {
	if len(fr.buf)-fr.lo < n {
		fr.hi = copy(fr.buf, fr.buf[fr.lo:fr.hi])
		fr.lo = 0
	}
	for fr.hi-fr.lo < n {
		if fr.lo == fr.hi {
			fr.lo, fr.hi = 0, 0
		}
		k, err := fr.r.Read(fr.buf[fr.hi:])
		fr.hi += k
		if k > 0 && fr.onRead != nil {
			fr.onRead()
		}
		if err != nil && fr.hi-fr.lo < n {
			if err == io.EOF && fr.hi > fr.lo {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
