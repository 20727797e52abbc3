//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Floor compares nkp's first transaction with the same objects sent by ovs-ofctl --bundle, in turns on one switch.
// Times are in milliseconds.
type Floor struct {
	Objects    int // flows and groups
	NKP, Ofctl []float64
}

// Ratio is that of the best rounds: other load only ever adds.
func (f Floor) Ratio() float64 { return slices.Min(f.NKP) / slices.Min(f.Ofctl) }

const secondBridge = "br-two"

type floor struct {
	Floor
	m    *measurement
	plan string // file
}

func (m *measurement) newFloor() (*floor, error) {
	return &floor{m: m, plan: filepath.Join(m.RunDir, "plan.txt")}, m.AddBridge(secondBridge)
}

// round programs the second bridge with ovs-ofctl, and asks the running nkp how long its first transaction took.
func (f *floor) round() error {
	m := f.m
	if f.Objects == 0 {
		text, err := m.RunNKP(append(m.NKPFlags("plan"), "-o", "ofctl")...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if meter, ok := strings.CutPrefix(line, "# meter "); ok {
				if _, err := m.Ofctl("add-meter", secondBridge, strings.TrimSpace(meter)); err != nil {
					return err
				}
			}
		}
		if err := os.WriteFile(f.plan, []byte(text), 0o600); err != nil {
			return err
		}
	}
	begin := time.Now()
	if _, err := m.Ofctl("bundle", secondBridge, f.plan); err != nil {
		return err
	}
	f.Ofctl = append(f.Ofctl, time.Since(begin).Seconds()*1000)
	for _, what := range []string{"del-groups", "del-flows"} {
		if _, err := m.Ofctl(what, secondBridge); err != nil {
			return err
		}
	}
	text, err := m.RunNKP("status", "-o", "json", "--socket", m.Socket())
	if err != nil {
		return err
	}
	var st struct {
		Programming struct {
			First *struct {
				Objects      int
				Milliseconds float64
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		return err
	}
	first := st.Programming.First
	if first == nil || first.Objects < 2*m.services {
		return fmt.Errorf("first transaction of nkp: %+v; want at least %d objects", first, 2*m.services)
	}
	f.Objects = first.Objects
	f.NKP = append(f.NKP, first.Milliseconds)
	return nil
}
