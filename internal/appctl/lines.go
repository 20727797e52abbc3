package appctl

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"unicode/utf8"
)

// Bounds on what Lines keeps of an answer, in bytes.
const (
	maxLine = 4 << 10 // of one line of the result, of an error, or of anything else, unless the result is kept
	maxAll  = 4 << 30 // of the whole answer, none of which is kept
)

// Lines runs one command on the daemon that listens at path and hands over what it says line by line, without the line's end,
// as it comes: no more than a line is kept. The line is valid during the call only. An error of do ends it. Otherwise it is
// like Call.
func Lines(ctx context.Context, path, command string, params []string, do func(line []byte) error) error {
	return with(ctx, path, command, func(conn net.Conn) error {
		if err := send(conn, 0, command, params); err != nil {
			return err
		}
		s := &stream{r: bufio.NewReaderSize(io.LimitReader(conn, maxAll), 64<<10), do: do, most: maxLine}
		return s.answer(command)
	})
}

// stream reads the JSON objects that are answers.
type stream struct {
	r      *bufio.Reader
	do     func([]byte) error // has each line of the result; nil: the result is kept
	most   int                // bounds what is kept of a line, or of a text, in bytes
	result string
	buf    []byte // of the line or text that is being read
}

var errNoAnswer = errors.New("not a JSON-RPC answer")

// answer reads the answer to a command. Its error is a *CommandError if the daemon refused the command.
func (s *stream) answer(command string) error {
	err := s.object()
	var refused *CommandError
	switch {
	case errors.As(err, &refused):
		refused.Command, s.result = command, ""
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the daemon closed the connection without an answer")
	}
	return err
}

// object reads the object. The order of its members is not fixed.
func (s *stream) object() error {
	s.result = ""
	var refused *CommandError
	result := false
	if c, err := s.next(); err != nil || c != '{' {
		return cmp.Or(err, errNoAnswer)
	}
	for {
		key, err := s.key()
		if err != nil {
			return err
		}
		c, err := s.next()
		switch {
		case err != nil:
			return err
		case c == '"' && key == "result":
			result = true
			if err = s.text(s.do); s.do == nil {
				s.result = string(s.buf)
			}
		case c == '"':
			err = s.text(nil)
			if key == "error" {
				refused = &CommandError{Text: string(s.buf)}
			}
		default:
			err = s.scalar(c)
		}
		if err != nil {
			return err
		}
		c, err = s.next()
		switch {
		case err != nil:
			return err
		case c == ',':
		case c != '}':
			return errNoAnswer
		case refused != nil:
			return refused
		case !result:
			return errors.New("an answer with neither result nor error")
		default:
			return nil
		}
	}
}

// next returns the next byte that is no white space.
func (s *stream) next() (byte, error) {
	for {
		c, err := s.r.ReadByte()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

// key reads the name of a member and the colon.
func (s *stream) key() (string, error) {
	c, err := s.next()
	if err == nil && c != '"' {
		err = errNoAnswer
	}
	if err == nil {
		err = s.text(nil)
	}
	key := string(s.buf)
	if err == nil {
		c, err = s.next()
	}
	if err == nil && c != ':' {
		err = errNoAnswer
	}
	return key, err
}

// scalar skips a number, true, false or null.
func (s *stream) scalar(c byte) error {
	for n := 0; n < maxLine; n++ {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E') {
			return errNoAnswer
		}
		ahead, err := s.r.Peek(1)
		if err != nil {
			return err
		}
		if c = ahead[0]; c == ',' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t' {
			return nil
		}
		_, _ = s.r.Discard(1)
	}
	return ErrTooLong
}

// text reads a string whose quotation mark has been read. With do it hands over each line; without, it leaves all in buf.
func (s *stream) text(do func([]byte) error) error {
	s.buf = s.buf[:0]
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return err
		}
		switch c {
		case '"':
			if do != nil && len(s.buf) > 0 {
				return do(s.buf)
			}
			return nil
		case '\\':
			r, err := s.escaped()
			if err != nil {
				return err
			}
			if r != '\n' || do == nil {
				s.buf = utf8.AppendRune(s.buf, r)
				break
			}
			if err := do(s.buf); err != nil {
				return err
			}
			s.buf = s.buf[:0]
		default:
			s.buf = append(s.buf, c)
		}
		if len(s.buf) > s.most {
			return ErrTooLong
		}
	}
}

// escaped reads the rest of an escape sequence (RFC 8259 §7). A surrogate becomes U+FFFD.
func (s *stream) escaped() (rune, error) {
	c, err := s.r.ReadByte()
	if err != nil {
		return 0, err
	}
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		var hex [4]byte
		if _, err := io.ReadFull(s.r, hex[:]); err != nil {
			return 0, err
		}
		n, err := strconv.ParseUint(string(hex[:]), 16, 16)
		if err != nil {
			return 0, errNoAnswer
		}
		return rune(n), nil
	}
	return 0, fmt.Errorf("%w: escape %q", errNoAnswer, c)
}
