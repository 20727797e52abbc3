package rules

import (
	"fmt"
	"slices"
	"testing"
)

func TestCheckDevices(t *testing.T) {
	for name, good := range map[string]bool{
		"eth0": true, "veth*": true, "*": true, "fifteen-letters": true, "fifteen-letters*": true,
		"": false, "sixteen--letters": false, "a*b": false, "**": false, "a b": false, "a/b": false,
	} {
		if err := CheckDevices([]string{"cni0", name}); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Of more devices than a flowtable takes, those that are in it stay, and the others come in order.
func TestMatchDevices(t *testing.T) {
	names := []string{"eth0", "eth1", "ovs"}
	for i := range 300 {
		names = append(names, fmt.Sprintf("veth%03d", i))
	}
	match, left := MatchDevices([]string{"eth0", "veth*", "none"}, names, []string{"veth299", "eth1"})
	if len(match) != MaxDevices || left != 301-MaxDevices || match[0] != "veth299" || match[1] != "eth0" || match[2] != "veth000" || slices.Contains(match, "eth1") {
		t.Errorf("%d left, matched: %v", left, match)
	}
	if match, left := MatchDevices(nil, names, nil); len(match)+left > 0 {
		t.Errorf("no pattern matches %v", match)
	}
}
