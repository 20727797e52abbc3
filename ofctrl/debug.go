package ofctrl

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// tracer prints messages if NKP_DEBUG asks for it; see the package's documentation.
type tracer struct {
	w    io.Writer // nil: nothing is printed
	hex  bool
	name string
}

func newTracer(t Target) tracer {
	words := strings.Split(os.Getenv("NKP_DEBUG"), ",")
	hex := slices.Contains(words, "openflow-hex")
	if !hex && !slices.Contains(words, "openflow") {
		return tracer{}
	}
	return tracer{w: os.Stderr, hex: hex, name: t.String()}
}

func (t tracer) frame(dir string, f frame) {
	if t.w == nil {
		return
	}
	inner := ""
	if f.typ() == typeBundleAdd && len(f) >= 24 {
		inner = " of " + frame(f[16:]).typ().String()
	}
	if f.typ() == typeError {
		e, _ := parseError(f)
		inner = " " + e.Reason()
	}
	fmt.Fprintf(t.w, "openflow %s %s %v%s xid=%#x len=%d\n", t.name, dir, f.typ(), inner, f.xid(), len(f))
	if t.hex {
		fmt.Fprintf(t.w, "  %x\n", []byte(f))
	}
}

// stream prints the messages that b is made of.
func (t tracer) stream(dir string, b []byte) {
	for t.w != nil && len(b) >= headerLen {
		n := int(u16(b[2:]))
		if n < headerLen || n > len(b) {
			return
		}
		t.frame(dir, b[:n])
		b = b[n:]
	}
}
