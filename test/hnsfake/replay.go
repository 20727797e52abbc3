package hnsfake

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// recorded is an object of a self-test's report: what HNS was asked for, and what it stored.
type recorded struct {
	Kind          string
	Asked, Stored Object
}

// Replay returns the alteration, for SetEcho, by which the fake stores objects as the HNS of a report of nkp hns-selftest (-o json) did:
// each like the recorded one that was asked for most similarly.
func Replay(report []byte) (func(kind string, o Object), error) {
	var r struct {
		Format  int
		Objects []recorded
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return nil, err
	}
	if r.Format != 1 {
		return nil, fmt.Errorf("format %d is not 1, the one that is known here", r.Format)
	}
	if len(r.Objects) == 0 {
		return nil, errors.New("the report has no objects")
	}
	return func(kind string, o Object) {
		var best *recorded
		least := 0
		for i := range r.Objects {
			c := &r.Objects[i]
			if n := distance(c.Asked, o); c.Kind == kind && c.Stored != nil && (best == nil || n < least) {
				best, least = c, n
			}
		}
		switch {
		case best == nil:
		case len(o) == 1: // an enumeration
			o["ID"] = alterText(o["ID"].(string), "", best.Stored["ID"])
		default:
			alterObject(o, best.Asked, best.Stored)
		}
	}, nil
}

// distance counts the fields that only one of two objects has, and those of port mappings.
func distance(a, b map[string]any) (n int) {
	for _, pair := range [][2]map[string]any{{a, b}, {b, a}} {
		for key := range pair[0] {
			if _, ok := pair[1][key]; !ok && key != "ID" {
				n += 10
			}
		}
	}
	if n == 0 && fmt.Sprint(a["Flags"], flagsOf(a)) != fmt.Sprint(b["Flags"], flagsOf(b)) {
		n++
	}
	return n
}

// flagsOf returns the fields of a load balancer's port mapping that differ between shapes.
func flagsOf(o map[string]any) (list []any) {
	mappings, _ := o["PortMappings"].([]any)
	for _, m := range mappings {
		if m, ok := m.(map[string]any); ok {
			list = append(list, m["Protocol"], m["Flags"], m["DistributionType"])
		}
	}
	return list
}

// alterObject changes o as HNS changed asked into stored.
func alterObject(o, asked, stored map[string]any) {
	for key := range asked {
		if _, ok := stored[key]; !ok {
			delete(o, key)
		}
	}
	for key, s := range stored {
		a, known := asked[key]
		switch have, ok := o[key]; {
		case key == "ID":
			o[key] = alterText(fmt.Sprint(have), "", s)
		case key == "Flags":
			o[key] = alterFlags(have, a, s)
		case ok:
			o[key] = alter(have, a, s)
		case !known:
			o[key] = s
		}
	}
}

// alter changes a value as HNS changed asked into stored.
func alter(have, asked, stored any) any {
	switch s := stored.(type) {
	case string:
		if h, ok := have.(string); ok {
			a, _ := asked.(string)
			return alterText(h, a, s)
		}
	case map[string]any:
		h, ok1 := have.(map[string]any)
		a, ok2 := asked.(map[string]any)
		if ok1 && ok2 {
			alterObject(h, a, s)
			return h
		}
	case []any:
		h, ok1 := have.([]any)
		a, ok2 := asked.([]any)
		if ok1 && ok2 && len(a) > 0 && len(s) >= len(a) {
			for i := range h {
				j := min(i, len(a)-1)
				h[i] = alter(h[i], a[j], s[j])
			}
			return append(h, s[len(a):]...)
		}
	}
	if fmt.Sprint(asked) == fmt.Sprint(stored) {
		return have
	}
	return stored
}

// alterFlags sets and clears the bits that HNS did.
func alterFlags(have, asked, stored any) any {
	h, a, s := bits(have), bits(asked), bits(stored)
	return float64((h | s&^a) &^ (a &^ s))
}

func bits(v any) uint32 {
	n, _ := v.(float64)
	return uint32(n)
}

// alterText changes the spelling of an id or a MAC address, or the value.
func alterText(have, asked string, stored any) any {
	s, ok := stored.(string)
	if !ok {
		return stored
	}
	plain := strings.NewReplacer("-", "", ":", "", "{", "", "}", "")
	if asked != "" && !strings.EqualFold(plain.Replace(asked), plain.Replace(s)) {
		return s
	}
	if strings.Contains(s, ":") && !strings.Contains(asked, ":") {
		have = strings.ReplaceAll(have, "-", ":")
	}
	if strings.HasPrefix(s, "{") {
		have = "{" + have + "}"
	}
	if s != strings.ToLower(s) && s == strings.ToUpper(s) {
		have = strings.ToUpper(have)
	}
	return have
}
