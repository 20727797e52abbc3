package apiserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// A list in protobuf is an envelope (Unknown in k8s.io/apimachinery/pkg/runtime/generated.proto) behind four bytes; in it
// is the list: its metadata, then the items.
const (
	protobufPrefix = "k8s\x00"

	envelopeType  = 1
	envelopeRaw   = 2
	listMeta      = 1
	listItem      = 2
	itemMeta      = 1
	managedFields = 17 // of ObjectMeta

	wireVarint = 0
	wireLength = 2
)

// errNoList says that an answer in protobuf is not what it should be.
var errNoList = errors.New("the answer is not a list in protobuf")

// decodeList reads a list and trims it. In protobuf it is read item by item as it comes in: neither the answer as a whole
// nor its objects with all that nothing reads of them are ever in memory, and the server's work and ours go side by side.
func (r *resource) decodeList(in io.Reader) (*internalversion.List, error) {
	b := bufio.NewReaderSize(in, 64<<10)
	if prefix, _ := b.Peek(len(protobufPrefix)); string(prefix) != protobufPrefix {
		return r.decodeWhole(b)
	}
	if _, err := b.Discard(len(protobufPrefix)); err != nil {
		return nil, err
	}
	envelope := section{in: b, left: math.MaxInt64}
	var of runtime.TypeMeta // the message has the name, and not the form, of metav1.TypeMeta
	for {
		number, size, err := envelope.field()
		switch {
		case err != nil:
			return nil, err
		case number == envelopeRaw && of.Kind != string(r.kind)+"List":
			return nil, fmt.Errorf("asked for %ss, the answer is of kind %q", r.kind, brief.Line(of.Kind))
		case number == envelopeRaw:
			return r.decodeItems(&section{in: b, left: size})
		}
		var buf bytes.Buffer
		data, err := envelope.take(size, &buf)
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
	var stripped []byte
	for s.left > 0 {
		number, size, err := s.field()
		if err != nil {
			return nil, err
		}
		data, err := s.take(size, &buf)
		if err != nil {
			return nil, err
		}
		switch number {
		case listMeta:
			err = list.ListMeta.Unmarshal(data)
		case listItem:
			stripped = withoutManagedFields(stripped[:0], data)
			var o runtime.Object
			if o, err = r.decodeItem(stripped); err == nil {
				list.Items = append(list.Items, o)
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
	_, err := trim(o)
	return o.(runtime.Object), err
}

// decodeWhole reads a list in JSON, which those send that do not speak protobuf.
func (r *resource) decodeWhole(in io.Reader) (*internalversion.List, error) {
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	whole := r.newList()
	format, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if err := runtime.DecodeInto(format.Serializer, data, whole); err != nil {
		return nil, err
	}
	head, err := meta.ListAccessor(whole)
	if err != nil {
		return nil, err
	}
	list := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: head.GetResourceVersion(), Continue: head.GetContinue()}}
	return list, meta.EachListItem(whole, func(o runtime.Object) error {
		_, err := trim(o)
		list.Items = append(list.Items, o)
		return err
	})
}

// section is a message of protobuf, or what is left of it.
type section struct {
	in   *bufio.Reader
	left int64
}

// ReadByte is part of io.ByteReader.
func (s *section) ReadByte() (byte, error) {
	if s.left == 0 {
		return 0, errNoList
	}
	s.left--
	c, err := s.in.ReadByte()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return c, err
}

// field reads the head of the next field, which must be one with a length, as all in lists and envelopes are. Nothing is read
// of the field itself yet, but it counts as read.
func (s *section) field() (number int, size int64, err error) {
	tag, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	n, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	if tag&7 != wireLength || n > uint64(s.left) {
		return 0, 0, errNoList
	}
	s.left -= int64(n)
	return int(tag >> 3), int64(n), nil
}

// take reads a field into a buffer, which grows with what comes, not with what is promised.
func (s *section) take(size int64, buf *bytes.Buffer) ([]byte, error) {
	buf.Reset()
	_, err := io.CopyN(buf, s.in, size)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return buf.Bytes(), err
}

// withoutManagedFields appends an item to buf and leaves out who manages which of its fields: often half of it, that would be
// decoded to be dropped. What it does not understand it leaves as it is.
func withoutManagedFields(buf, item []byte) []byte {
	number, meta, rest := nextField(item)
	if number != itemMeta || meta == nil {
		return append(buf, item...)
	}
	from := 0 // where the managed fields begin; the encoder writes them last
	for left := meta; len(left) > 0; {
		number, _, after := nextField(left)
		if number == 0 {
			return append(buf, item...)
		}
		if number == managedFields {
			break
		}
		left = after
		from = len(meta) - len(left)
	}
	for left := meta[from:]; len(left) > 0; {
		number, _, after := nextField(left)
		if number != managedFields {
			return append(buf, item...)
		}
		left = after
	}
	buf = append(buf, itemMeta<<3|wireLength)
	buf = binary.AppendUvarint(buf, uint64(from))
	buf = append(buf, meta[:from]...)
	return append(buf, rest...)
}

// nextField takes the first field from a message: a number, which gives no field, or what has a length; number 0: it is
// neither.
func nextField(b []byte) (number int, field, rest []byte) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil
	}
	size, m := binary.Uvarint(b[n:])
	if m <= 0 {
		return 0, nil, nil
	}
	b = b[n+m:]
	switch {
	case tag&7 == wireVarint:
		return int(tag >> 3), nil, b
	case tag&7 == wireLength && size <= uint64(len(b)):
		return int(tag >> 3), b[:size:size], b[size:]
	}
	return 0, nil, nil
}
