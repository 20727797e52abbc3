package serving

import "testing"

// The masquerade bit is one of a packet's 32-bit mark that kube-proxy's --iptables-masquerade-bit takes, 0 to 31.
func TestMasqueradeBit(t *testing.T) {
	for bit, valid := range map[int]bool{-1: false, 0: true, 14: true, 31: true, 32: false} {
		c := DefaultConfig()
		c.MasqueradeBit = bit
		if err := c.Validate(); (err == nil) != valid {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}
