package apiserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// A protobuf list is four bytes and an envelope (Unknown in k8s.io/apimachinery/pkg/runtime/generated.proto).
// The envelope holds the list: its metadata, then the items.
const (
	protobufPrefix = "k8s\x00"

	envelopeType = 1
	envelopeRaw  = 2
	listMeta     = 1
	listItem     = 2

	wireLength = 2
)

// errNotAList reports a protobuf answer that is not a well-formed list.
var errNotAList = errors.New("the answer is not a list in protobuf")

// decodeList reads a list, or the next page of one, and trims its objects. Those that do not fit into the
// budget (r.kept) are left out. Protobuf is decoded item by item as it arrives, so that neither the whole
// answer nor all untrimmed objects are ever in memory, and so that server and client work in parallel.
func (r *resource) decodeList(in io.Reader) (*internalversion.List, error) {
	b := bufio.NewReaderSize(in, 64<<10)
	if prefix, _ := b.Peek(len(protobufPrefix)); string(prefix) != protobufPrefix {
		return r.decodeWhole(b)
	}
	if _, err := b.Discard(len(protobufPrefix)); err != nil {
		return nil, err
	}

	envelope := section{in: b, remaining: math.MaxInt64}
	var of runtime.TypeMeta // this message shares the name of metav1.TypeMeta but not its encoding
	for {
		number, size, err := envelope.field()
		switch {
		case err != nil:
			return nil, err
		case number == envelopeRaw && of.Kind != string(r.kind)+"List":
			return nil, fmt.Errorf("asked for %ss, the answer is of kind %q", r.kind, brief.Line(of.Kind))
		case number == envelopeRaw:
			return r.decodeItems(&section{in: b, remaining: size})
		}
		if size > maxObject {
			return nil, errNotAList
		}

		var buf bytes.Buffer
		data, err := envelope.read(size, &buf)
		if err == nil && number == envelopeType {
			err = of.Unmarshal(data)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (r *resource) decodeItems(s *section) (*internalversion.List, error) {
	list := &internalversion.List{}
	var buf bytes.Buffer
	for s.remaining > 0 {
		number, size, err := s.field()
		if err != nil {
			return nil, err
		}

		if size > maxObject {
			if number == listMeta {
				return nil, errNotAList
			}
			if _, err := io.CopyN(io.Discard, s.in, size); err != nil {
				return nil, err
			}
			r.kept.left.add(fmt.Sprintf("one of %d MiB behind %d others", size>>20, len(list.Items)))
			continue
		}

		data, err := s.read(size, &buf)
		if err != nil {
			return nil, err
		}
		switch number {
		case listMeta:
			err = list.ListMeta.Unmarshal(data)
		case listItem:
			var o runtime.Object
			if o, err = r.decodeItem(data); err == nil {
				r.keep(list, o)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cannot decode item %d: %w", len(list.Items), err)
		}
	}
	return list, nil
}

func (r *resource) decodeItem(data []byte) (runtime.Object, error) {
	o := r.kind.New()
	if err := o.(interface{ Unmarshal([]byte) error }).Unmarshal(data); err != nil {
		return nil, err
	}
	trim(o)
	return o.(runtime.Object), nil
}

// decodeWhole reads a list in JSON, sent by servers that do not support protobuf.
func (r *resource) decodeWhole(in io.Reader) (*internalversion.List, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > maxAnswer {
		return nil, fmt.Errorf("%w than %d MiB, and not in protobuf", errTooLong, maxAnswer>>20)
	}

	var whole struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, err
	}
	if whole.Kind != string(r.kind)+"List" {
		return nil, fmt.Errorf("asked for %ss, the answer is of kind %q", r.kind, brief.Line(whole.Kind))
	}

	list := &internalversion.List{ListMeta: whole.ListMeta}
	for i, item := range whole.Items {
		o := r.kind.New()
		if err := json.Unmarshal(item, o); err != nil {
			return nil, fmt.Errorf("cannot decode item %d: %w", i, err)
		}
		trim(o)
		r.keep(list, o.(runtime.Object))
	}
	return list, nil
}

// keep adds a trimmed object to a list. If that is more than the budget allows, objects of the list are left
// out.
func (r *resource) keep(list *internalversion.List, o runtime.Object) {
	list.Items = append(list.Items, o)
	r.kept.take(o)
	if r.kept.over() {
		list.Items = r.kept.shrink(list.Items)
	}
}

// section is a protobuf message, or the unread rest of it.
type section struct {
	in        *bufio.Reader
	remaining int64
}

// ReadByte is part of io.ByteReader.
func (s *section) ReadByte() (byte, error) {
	if s.remaining == 0 {
		return 0, errNotAList
	}
	s.remaining--
	c, err := s.in.ReadByte()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return c, err
}

// field reads the header of the next field, which must be length-delimited, as all fields of lists and
// envelopes are. The caller must read the payload; left already excludes it.
func (s *section) field() (number int, size int64, err error) {
	tag, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	n, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	if tag&7 != wireLength || n > uint64(s.remaining) {
		return 0, 0, errNotAList
	}
	s.remaining -= int64(n)
	return int(tag >> 3), int64(n), nil
}

// read reads a field into a buffer, which grows with the bytes received, not with the announced size.
func (s *section) read(size int64, buf *bytes.Buffer) ([]byte, error) {
	buf.Reset()
	_, err := io.CopyN(buf, s.in, size)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return buf.Bytes(), err
}
