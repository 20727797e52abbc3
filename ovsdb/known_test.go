package ovsdb

import "testing"

func TestDiesOfNullNAT(t *testing.T) {
	for _, tc := range []struct {
		datapath, version string
		want              bool
	}{
		{"netdev", "2.13.11", true},
		{"netdev", "2.16.7", true},
		{"netdev", "2.17.7", true},
		{"netdev", "2.17.8", false},
		{"netdev", "3.0.4", true},
		{"netdev", "3.1.0", true},
		{"netdev", "3.1.2-dev", true},
		{"netdev", "3.2.2", true},
		{"netdev", "3.1.3", false},
		{"netdev", "3.2.10", false},
		{"netdev", "3.3.0", false},
		{"netdev", "3.1", true},
		{"netdev", "3.3", false},
		{"netdev", "4.0.0", false},
		{"netdev", "", true},
		{"netdev", "unknown", true},
		{"system", "3.1.0", false},
	} {
		if got := (&Switch{DatapathType: tc.datapath, OVSVersion: tc.version}).DiesOfNullNAT(); got != tc.want {
			t.Errorf("%s %s: %t, want %t", tc.datapath, tc.version, got, tc.want)
		}
	}
}

func TestLacksNullSNAT(t *testing.T) {
	for _, tc := range []struct {
		datapath, version string
		want              bool
	}{
		{"netdev", "2.13.11", true},
		{"netdev", "2.15", true},
		{"netdev", "2.16.0", false},
		{"netdev", "3.1.0", false},
		{"netdev", "1.11.0", true},
		{"netdev", "", false},
		{"netdev", "unknown", false},
		{"system", "2.13.11", false},
	} {
		if got := (&Switch{DatapathType: tc.datapath, OVSVersion: tc.version}).LacksNullSNAT(); got != tc.want {
			t.Errorf("%s %s: %t, want %t", tc.datapath, tc.version, got, tc.want)
		}
	}
}
