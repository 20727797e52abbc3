package report

import "testing"

func TestBusy(t *testing.T) {
	for load, want := range map[string]bool{"0.90 3.00 3.00": false, "1.10 0.10 0.10": true, "": false} {
		if got := (Machine{Cores: 2, Load: load}).Busy(); got != want {
			t.Errorf("load %q on 2 cores is busy: %t; want %t", load, got, want)
		}
	}
	if m := ThisMachine(); m.Cores == 0 || m.Kernel == "" || m.MemoryGB == 0 || m.Load == "" {
		t.Errorf("%+v", m)
	}
}
