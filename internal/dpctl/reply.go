package dpctl

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds on a reply, in bytes.
const (
	maxReply = 64 << 20 // of a text that is kept
	maxLine  = 4 << 10  // of anything in a reply that is read line by line
	maxAll   = 4 << 30  // of all replies of a connection
)

var (
	errTooLong  = errors.New("the answer is too long")
	errNoAnswer = errors.New("not a JSON-RPC answer")
	errClosed   = errors.New("the daemon closed the connection without an answer")
)

// reader reads replies: JSON objects whose members are texts, numbers or null, in any order. After an error
// it must not be used.
type reader struct {
	r    *bufio.Reader
	line func([]byte) error // has each line of the result; nil: the result is returned
	most int                // bounds a line, or a text, in bytes
	buf  []byte
	err  error // the first
}

// reply reads one reply. refused, without its Command, is set if the daemon refused the command.
func (s *reader) reply() (result string, refused *CommandError, err error) {
	answered := false
	s.expect('{')
	delimiter := byte(',')
	for delimiter == ',' && s.err == nil {
		s.expect('"')
		name := s.text(nil)
		s.expect(':')
		switch c := s.next(); {
		case c != '"':
			s.skipScalar(c)
		case name == "result":
			answered, result = true, s.text(s.line)
		case name == "error":
			refused = &CommandError{Text: s.text(nil)}
		default:
			s.text(nil)
		}
		delimiter = s.next()
	}

	switch {
	case errors.Is(s.err, io.EOF), errors.Is(s.err, io.ErrUnexpectedEOF):
		return "", nil, errClosed
	case s.err != nil:
		return "", nil, s.err
	case delimiter != '}':
		return "", nil, errNoAnswer
	case refused != nil:
		return "", refused, nil
	case !answered:
		return "", nil, errors.New("an answer with neither result nor error")
	}
	return result, nil, nil
}

// byte returns the next byte; 0 after an error.
func (s *reader) byte() byte {
	c, err := s.r.ReadByte()
	if s.err == nil {
		s.err = err
	}
	if s.err != nil {
		return 0
	}
	return c
}

// next returns the next byte that is no white space.
func (s *reader) next() byte {
	for {
		if c := s.byte(); c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
}

// expect reads a byte that must be c.
func (s *reader) expect(c byte) {
	if got := s.next(); got != c && s.err == nil {
		s.err = errNoAnswer
	}
}

// skipScalar skips a number, true, false or null that begins with c.
func (s *reader) skipScalar(c byte) {
	for s.err == nil && strings.IndexByte("0123456789abcdefghijklmnopqrstuvwxyzE+-.", c) >= 0 {
		c = s.byte()
	}
	if s.err == nil {
		s.err = s.r.UnreadByte()
	}
}

// text reads the rest of a string, whose quotation mark has been read. With line it calls that for each line
// of the string, and returns nothing.
func (s *reader) text(line func([]byte) error) string {
	s.buf = s.buf[:0]

	for {
		c := s.byte()
		switch {
		case s.err != nil:
			return ""
		case c == '"' && line == nil:
			return string(s.buf)
		case c == '"':
			if len(s.buf) > 0 {
				s.err = line(s.buf)
			}
			return ""
		case c != '\\':
			s.buf = append(s.buf, c)
		default:
			r := s.escaped()
			if r != '\n' || line == nil {
				s.buf = utf8.AppendRune(s.buf, r)
				break
			}
			if s.err == nil {
				s.err = line(s.buf)
			}
			s.buf = s.buf[:0]
		}

		if len(s.buf) > s.most {
			s.err = errTooLong
		}
	}
}

// The characters that stand behind a backslash for others (RFC 8259 §7), and those others.
const (
	escapes   = `"\/bfnrt`
	unescaped = "\"\\/\b\f\n\r\t"
)

// escaped reads the rest of an escape sequence. A surrogate becomes U+FFFD.
func (s *reader) escaped() rune {
	c := s.byte()
	if i := strings.IndexByte(escapes, c); i >= 0 {
		return rune(unescaped[i])
	}

	hex := string([]byte{s.byte(), s.byte(), s.byte(), s.byte()})
	n, err := strconv.ParseUint(hex, 16, 16)
	if s.err == nil && (c != 'u' || err != nil) {
		s.err = errNoAnswer
	}
	return rune(n)
}
