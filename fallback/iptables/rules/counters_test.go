package rules

import "testing"

func TestParseEntry(t *testing.T) {
	for line, want := range map[string]Entry{
		`-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -c 7 420 -j KUBE-SVC-ABC`: {Hash: "ABC", Packets: 7},
		`-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -c 3 180 -j KUBE-EXT-ABC`:                       {Hash: "ABC", Packets: 3},
		`-A KUBE-SERVICES -d 20.0.0.1/32 -p tcp -m tcp --dport 80 -c 9 540 -j KUBE-FW-ABC`:                                                     {Hash: "ABC", Firewall: "KUBE-FW-ABC", Packets: 9},
		`-A KUBE-FW-ABC -s 192.168.0.0/24 -c 4 240 -j KUBE-EXT-ABC`:                                                                            {Hash: "ABC", Packets: 4},
		// These lead to no Service port, or have no counters.
		`-A KUBE-SERVICES -m addrtype --dst-type LOCAL -c 1 60 -j KUBE-NODEPORTS`: {},
		`-A KUBE-SVC-ABC -c 1 60 -j KUBE-SEP-XYZ`:                                 {},
		`-A KUBE-SERVICES -d 10.0.0.1/32 -j KUBE-SVC-ABC`:                         {},
		`-N KUBE-SERVICES`: {},
	} {
		e, ok := ParseEntry(line)
		if ok != (want != Entry{}) || ok && e != want {
			t.Errorf("%s\nis read as %+v, %v; want %+v", line, e, ok, want)
		}
	}
}
