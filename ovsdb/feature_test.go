package ovsdb

import "testing"

// The releases that have each feature, on the datapaths that matter for it.
func TestHas(t *testing.T) {
	for _, tc := range []struct {
		feature           Feature
		datapath, version string
		want              bool
	}{
		{NullNAT, "netdev", "2.13.11", false},
		{NullNAT, "netdev", "2.16.7", false},
		{NullNAT, "netdev", "2.17.7", false},
		{NullNAT, "netdev", "2.17.8", true},
		{NullNAT, "netdev", "3.0.4", false},
		{NullNAT, "netdev", "3.1.0", false},
		{NullNAT, "netdev", "3.1.2-dev", false},
		{NullNAT, "netdev", "3.2.2", false},
		{NullNAT, "netdev", "3.1.3", true},
		{NullNAT, "netdev", "3.2.10", true},
		{NullNAT, "netdev", "3.3.0", true},
		{NullNAT, "netdev", "3.1", false},
		{NullNAT, "netdev", "3.3", true},
		{NullNAT, "netdev", "4.0.0", true},
		{NullNAT, "netdev", "", false},
		{NullNAT, "netdev", "unknown", false},
		{NullNAT, "system", "3.1.0", true},

		{NullSNAT, "netdev", "2.13.11", false},
		{NullSNAT, "netdev", "2.15", false},
		{NullSNAT, "netdev", "2.16.0", true},
		{NullSNAT, "netdev", "3.1.0", true},
		{NullSNAT, "netdev", "1.11.0", false},
		{NullSNAT, "netdev", "", true},
		{NullSNAT, "netdev", "unknown", true},
		{NullSNAT, "system", "2.13.11", true},

		{OpenFlow15, "system", "2.11.4", false},
		{OpenFlow15, "netdev", "2.12.0", true},
		{OpenFlow15, "netdev", "", true},

		{CTFlush, "system", "3.0.9", false},
		{CTFlush, "netdev", "3.1.0", true},
	} {
		if got := (&Switch{DatapathType: tc.datapath, OVSVersion: tc.version}).Has(tc.feature); got != tc.want {
			t.Errorf("%s %q has %s: %t, want %t", tc.datapath, tc.version, tc.feature, got, tc.want)
		}
	}
}
