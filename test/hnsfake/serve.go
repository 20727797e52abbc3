package hnsfake

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// The wire between the DLLs of test/k8s/windows and the fake; all numbers are little-endian 32 bits, but handles, which have 64.
//
//	call:  count, then count strings (length, UTF-8): the function and its arguments
//	reply: HRESULT, handle, id string, output string, error record string
//
// An empty string stands for a NULL pointer. HcnRegisterServiceCallback has a connection of its own (serveWatch).

// maxString bounds a string on the wire.
const maxString = 64 << 20

// Serve answers the DLLs on a listener until it is closed.
func (s *Server) Serve(l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			for s.answer(c) == nil {
			}
		})
	}
}

// answer reads a call and writes its reply.
func (s *Server) answer(c net.Conn) error {
	var count uint32
	if err := binary.Read(c, binary.LittleEndian, &count); err != nil || count == 0 || count > 8 {
		return errors.Join(err, errors.New("not a call"))
	}
	words := make([]string, count)
	for i := range words {
		var n uint32
		if err := binary.Read(c, binary.LittleEndian, &n); err != nil || n > maxString {
			return errors.Join(err, errors.New("not a string"))
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		words[i] = string(b)
	}
	if words[0] == "HcnRegisterServiceCallback" {
		return s.serveWatch(c)
	}
	return writeReply(c, s.Call(words[0], words[1:]...))
}

func writeReply(c io.Writer, r Reply) error {
	var out []byte
	out = binary.LittleEndian.AppendUint32(out, r.HResult)
	out = binary.LittleEndian.AppendUint64(out, r.Handle)
	for _, text := range []string{r.ID, r.Out, r.Record} {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(text)))
		out = append(out, text...)
	}
	_, err := c.Write(out)
	return err
}
