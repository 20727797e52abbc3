package ofctrl

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

const groupDescLen = 16

// groupDesc parses an ofp_group_desc (OpenFlow 1.5.1 §7.3.5). For parts that flow.Group cannot represent it
// sets Method to UnknownMethod or adds an UnknownAction to a bucket.
func (d *decoder) groupDesc(b []byte) (g *flow.Group, err error) {
	buckets := int(u16(b[8:]))
	if groupDescLen+buckets > len(b) {
		return nil, short("group description")
	}
	g = &flow.Group{ID: u32(b[4:])}
	if g.Method, err = groupMethod(b[groupDescLen+buckets:]); err != nil {
		return nil, err
	}
	if b[2] != groupTypeSelect {
		g.Method = flow.UnknownMethod
	}
	d.v6 = false
	if g.Buckets, err = d.buckets(b[groupDescLen : groupDescLen+buckets]); err != nil {
		return nil, fmt.Errorf("group %d: %w", g.ID, err)
	}
	return g, nil
}

func (d *decoder) buckets(b []byte) ([]flow.Bucket, error) {
	count := 0
	for rest := b; len(rest) > 0; count++ {
		if len(rest) < 8 {
			return nil, short("bucket")
		}
		n := int(u16(rest))
		if n < 8 || n > len(rest) || 8+int(u16(rest[2:])) > n {
			return nil, fmt.Errorf("%w: bucket of %d bytes", ErrProtocol, n)
		}
		rest = rest[n:]
	}

	out := make([]flow.Bucket, count)
	acts := make([]flow.Action, 0, count) // one array for the buckets' actions, as most have just one
	for i := range out {
		n := int(u16(b))
		k := &out[i]
		k.ID = u32(b[4:])
		split := 8 + int(u16(b[2:]))
		from := len(acts)
		var err error
		if acts, err = d.actions(acts, b[8:split]); err != nil {
			return nil, err
		}
		if err := bucketProps(k, b[split:n], &acts); err != nil {
			return nil, err
		}
		k.Actions = acts[from:len(acts):len(acts)]
		b = b[n:]
	}

	return out, nil
}

// bucketProps reads the weight; any other property becomes an UnknownAction.
func bucketProps(k *flow.Bucket, b []byte, acts *[]flow.Action) error {
	return properties(b, func(typ uint16, p []byte) {
		if typ == 0 && len(p) >= 6 {
			k.Weight = u16(p[4:])
			return
		}
		*acts = append(*acts, flow.UnknownAction{Text: fmt.Sprintf("property=%x", p)})
	})
}

// properties calls do for each property of a list, with its header and without padding.
func properties(b []byte, do func(typ uint16, p []byte)) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return short("property")
		}
		n := int(u16(b[2:]))
		if n < 4 || n > len(b) {
			return fmt.Errorf("%w: property of %d bytes", ErrProtocol, n)
		}
		do(u16(b), b[:n])
		b = b[min((n+7)&^7, len(b)):]
	}
	return nil
}

// groupMethod returns the selection method whose template equals a group's properties, else UnknownMethod.
func groupMethod(b []byte) (flow.Method, error) {
	method := flow.UnknownMethod
	count := 0
	err := properties(b, func(_ uint16, p []byte) {
		count++
		i := slices.IndexFunc(methodTemplates[:], func(t []byte) bool {
			return bytes.Equal(t[:u16(t[2:])], p)
		})
		if i >= 0 {
			method = flow.Method(i)
		}
	})
	if count != 1 {
		method = flow.UnknownMethod
	}
	return method, err
}

const meterDescLen = 8

// meterDesc parses an ofp_meter_desc (OpenFlow 1.5.1 §7.3.5). A meter unlike those that nkp
// creates is returned with a rate of 0.
func meterDesc(b []byte) (m flow.Meter) {
	const flags = 0xe // pktps, burst, stats (§7.3.4.5)
	m.ID = u32(b[4:])
	if band := b[meterDescLen:]; u16(b[2:]) == flags && len(band) == 16 && u16(band) == 1 {
		m.Rate, m.Burst = u32(band[4:]), u32(band[8:])
	}
	return m
}
