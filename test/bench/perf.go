//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// activity is what functions are called for. A sample belongs to the first of a list that has a function of its call chain.
type activity struct {
	name  string
	funcs []string
}

// What the machine does beside ovs-vswitchd, or without one.
var (
	idle    = activity{"", []string{"pv_native_safe_halt", "native_safe_halt", "default_idle", "intel_idle", "mwait_idle"}} // nobody's
	kernel  = []string{"entry_SYSCALL_64_after_hwframe", "ret_from_fork_asm", "asm_sysvec_apic_timer_interrupt", "asm_sysvec_hyperv_stimer0", "asm_exc_page_fault", "secondary_startup_64_no_verify", "common_startup_64"}
	outside = activity{"clients and pods, outside the kernel", nil}
)

// The activities of ovs-vswitchd (3.1), and of the kernel (x86-64) on its behalf; those of all others beside it; and those of a
// machine whose kernel forwards, by openvswitch.ko or by its bridge and netfilter (Linux 6).
var (
	switchActivities = []activity{
		{"kernel: sending, with TCP of the receivers; receiving", []string{"__x64_sys_sendmmsg", "__x64_sys_sendmsg", "__x64_sys_sendto", "__x64_sys_recvmmsg", "__x64_sys_recvmsg", "__x64_sys_read", "__x64_sys_write"}},
		{"kernel: poll, switches of tasks, the rest", kernel},
		{"tracker: looking up, following, translating, committing", []string{"conntrack_execute"}},
		{"tracker: forgetting", []string{"clean_thread_main"}},
		{"cached flows: search", []string{"dpcls_lookup", "dfc_processing", "emc_lookup"}},
		{"all the rest of ovs-vswitchd", nil},
	}
	besideSwitch   = []activity{idle, {"clients and pods, in the kernel", kernel}, outside}
	kernelForwards = []activity{
		idle,
		{"netfilter: rules", []string{"ipt_do_table", "nft_do_chain"}},
		{"tracker: committing", []string{"__nf_conntrack_confirm"}},
		{"tracker: translating", []string{"nf_nat_inet_fn", "nf_nat_ipv4_fn", "nf_nat_setup_info", "nf_nat_packet", "nf_nat_ipv4_pre_routing", "nf_nat_ipv4_out", "nf_nat_ipv4_local_fn"}},
		{"tracker: looking up, following, making connections", []string{"nf_conntrack_in"}},
		{"tracker: forgetting", []string{"nf_ct_delete", "nf_ct_destroy", "gc_worker"}},
		{"openvswitch.ko: tracker, besides", []string{"ovs_ct_execute"}},
		{"openvswitch.ko: search of cached flows", []string{"ovs_flow_tbl_lookup_stats", "ovs_flow_tbl_lookup", "flow_lookup"}},
		{"openvswitch.ko: the rest, sending", []string{"ovs_dp_process_packet", "ovs_execute_actions", "do_execute_actions", "ovs_vport_receive"}},
		{"all the rest of the kernel", kernel},
		outside,
	}
)

// samples are where the machine's CPU time went: nanoseconds by activity, and by function. The last activity of a list has no
// functions and takes the rest; one without a name is left out.
type samples struct {
	pid                int // of ovs-vswitchd; 0: there is none that forwards
	activity, function map[string]float64
}

// perf profiles the machine while work is at work, and adds what it found.
func (s *samples) perf(ctx context.Context, work func() error) (err error) {
	dir, err := os.MkdirTemp("", "nkp-bench-perf-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "perf.data")
	var said bytes.Buffer
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %s", err, said.String())
		}
	}()
	const frequency = 500 // samples a second of each core; an emulated machine does little in a second
	// Many virtual machines have no counters of the CPU's; a clock is everywhere.
	record := exec.CommandContext(ctx, "perf", "record", "-q", "-e", "cpu-clock", "-F", fmt.Sprint(frequency), "-g", "-a", "-o", file)
	record.Stderr = &said
	if err := record.Start(); err != nil {
		return err
	}
	err = work()
	_ = record.Process.Signal(syscall.SIGINT) // ends the file; perf's exit status reflects the signal
	_ = record.Wait()
	if err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "perf", "script", "-i", file, "-F", "comm,pid,period,ip,sym")
	script.Stderr = &said
	text, err := script.Output()
	if err != nil {
		return err
	}
	if !s.add(text) {
		return errors.New("perf has seen nothing")
	}
	return nil
}

// add takes what perf script printed, and reports whether there is anything: of each sample the thread's name, its process and
// the nanoseconds that it stands for, then, behind tabs, address and name of each function of its call chain, the innermost first;
// then an empty line.
func (s *samples) add(text []byte) (any bool) {
	if s.activity == nil {
		s.activity, s.function = map[string]float64{}, map[string]float64{}
	}
	var pid int
	var period float64
	var chain []string
	end := func() {
		if len(chain) > 0 {
			if a := s.activityOf(pid, chain); a != "" {
				s.activity[a] += period
				s.function[chain[0]] += period
				any = true
			}
		}
		chain = nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
			end()
		case line[0] == '\t':
			// A compiler's variant, such as conn_clean.part.0, goes by the name of the whole.
			name, _, _ := strings.Cut(strings.Join(fields[1:], " "), ".")
			chain = append(chain, name)
		default:
			_, _ = fmt.Sscan(strings.Join(fields[max(0, len(fields)-2):], " "), &pid, &period)
		}
	}
	end()
	return any
}

func (s *samples) activityOf(pid int, chain []string) string {
	list := besideSwitch
	switch s.pid {
	case 0:
		list = kernelForwards
	case pid:
		list = switchActivities
	}
	for _, a := range list {
		if a.funcs == nil || slices.ContainsFunc(chain, func(f string) bool { return slices.Contains(a.funcs, f) }) {
			return a.name
		}
	}
	return ""
}
