//go:build linux

package main

import "testing"

// What perf script prints of ovs-vswitchd: a thread's name may have blanks, a function a compiler's suffix.
const perfScript = `ovs-vswitchd   77     500000 
	           72d31 conn_key_lookup.isra.0
	           73b95 conntrack_execute
	           1de39 main

ct_clean7   77     250000 
	           12d31 conn_clean
	           13b95 clean_thread_main

nkp handler 2   77     125000 
	ffffffff816d4303 veth_xmit
	ffffffff816b795d __x64_sys_sendmmsg
	ffffffff81000130 entry_SYSCALL_64_after_hwframe

ovs-vswitchd   77     500000 
	           99d31 odp_execute_actions

a client   80     100000 
	ffffffff816b795d tcp_v4_connect
	ffffffff81000130 entry_SYSCALL_64_after_hwframe

a client   80     100000 
	           99d31 main.main

swapper   0     100000 
	ffffffff816b795d default_idle

`

func TestSamples(t *testing.T) {
	s := samples{pid: 77}
	if s.add(nil) {
		t.Error("nothing is taken for something")
	}
	for range 2 {
		if !s.add([]byte(perfScript)) {
			t.Fatal("something is taken for nothing")
		}
	}
	for name, want := range map[string]float64{
		"tracker: looking up, following, translating, committing": 1_000_000,
		"tracker: forgetting": 500_000,
		"kernel: sending, with TCP of the receivers; receiving": 250_000,
		"all the rest of ovs-vswitchd":                          1_000_000,
	} {
		if got := s.activity[name]; got != want {
			t.Errorf("%s: %v ns, not %v", name, got, want)
		}
	}
	if n := len(s.activity); n != 6 {
		t.Errorf("%d activities: %v", n, s.activity)
	}
	if got := s.function["conn_key_lookup"]; got != 1_000_000 {
		t.Errorf("conn_key_lookup: %v ns", got)
	}
}

// Nobody's time is left out, and the innermost of several activities has the sample.
func TestSamplesOfTheMachine(t *testing.T) {
	var s samples
	if !s.add([]byte(`swapper     0     500000 
	ffffffff81000001 pv_native_safe_halt
	ffffffff81000002 common_startup_64

traffic   78     500000 
	ffffffff81000003 nft_do_chain
	ffffffff81000004 nf_nat_inet_fn
	ffffffff81000130 entry_SYSCALL_64_after_hwframe

`)) {
		t.Fatal("something is taken for nothing")
	}
	if len(s.activity) != 1 || s.activity["netfilter: rules"] != 500_000 {
		t.Errorf("%v", s.activity)
	}
}
