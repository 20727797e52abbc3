package main

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// systemCalls returns the calls that SystemCallFilter= allows, by systemd's own list of its groups.
func (s service) systemCalls() ([]string, error) {
	groups, err := callGroups()
	if err != nil {
		return nil, err
	}
	allowed := map[string]bool{}
	for _, line := range s["SystemCallFilter"] {
		line, deny := strings.CutPrefix(line, "~")
		for _, word := range strings.Fields(line) {
			calls, err := expand(groups, word)
			if err != nil {
				return nil, err
			}
			for _, c := range calls {
				if deny {
					delete(allowed, c)
				} else {
					allowed[c] = true
				}
			}
		}
	}
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	// Systemd allows these whatever a unit says: it needs them itself to start the command. (man systemd.exec)
	for _, c := range []string{"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn", "clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time"} {
		allowed[c] = true
	}
	maps.DeleteFunc(allowed, func(c string, _ bool) bool { _, here := info.SyscallNames[c]; return !here })
	return slices.Sorted(maps.Keys(allowed)), nil
}

// callGroups returns systemd's groups of system calls, as it lists them: their members, which may be groups themselves.
func callGroups() (map[string][]string, error) {
	out, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter").Output()
	if err != nil {
		return nil, fmt.Errorf("systemd-analyze syscall-filter: %w", err)
	}
	groups := map[string][]string{}
	var group string
	for line := range strings.Lines(string(out)) {
		word := strings.TrimSpace(line)
		switch {
		case word == "" || word[0] == '#':
		case line[0] == '@':
			group = word
		default:
			groups[group] = append(groups[group], word)
		}
	}
	return groups, nil
}

// expand returns the calls of a group such as @system-service.
func expand(groups map[string][]string, word string) ([]string, error) {
	if !strings.HasPrefix(word, "@") {
		return []string{word}, nil
	}
	members, ok := groups[word]
	if !ok {
		return nil, fmt.Errorf("systemd has no group of system calls %s", word)
	}
	var calls []string
	for _, m := range members {
		inner, err := expand(groups, m)
		if err != nil {
			return nil, err
		}
		calls = append(calls, inner...)
	}
	return calls, nil
}

// confineCalls loads the filters; what they do not allow fails with EPERM.
func (s service) confineCalls(allowed []string) error {
	if !s.is("SystemCallErrorNumber", "EPERM") {
		return fmt.Errorf("only SystemCallErrorNumber=EPERM is known here")
	}
	const refuse = seccomp.ActionErrno // it is EPERM
	// Arguments first: under the other filter no filter can be loaded.
	if err := load(seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls:      []seccomp.SyscallGroup{{Action: refuse, NamesWithCondtions: s.arguments()}},
	}); err != nil {
		return err
	}
	return load(seccomp.Policy{
		DefaultAction: refuse,
		Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionAllow, Names: allowed}},
	})
}

func load(p seccomp.Policy) error {
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Policy: p}); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// families are the address families of RestrictAddressFamilies=.
var families = map[string]uint64{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}

// arguments are the calls that are refused with some arguments.
func (s service) arguments() (list []seccomp.NameWithConditions) {
	add := func(name string, c ...seccomp.Condition) {
		list = append(list, seccomp.NameWithConditions{Name: name, Conditions: c})
	}
	if s.on("RestrictNamespaces") {
		const any = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
		for _, name := range []string{"unshare", "clone"} {
			add(name, seccomp.Condition{Argument: 0, Operation: seccomp.BitsSet, Value: any})
		}
	}
	if s.on("MemoryDenyWriteExecute") {
		add("mmap", seccomp.Condition{Argument: 2, Operation: seccomp.BitsSet, Value: unix.PROT_WRITE},
			seccomp.Condition{Argument: 2, Operation: seccomp.BitsSet, Value: unix.PROT_EXEC})
		add("mprotect", seccomp.Condition{Argument: 2, Operation: seccomp.BitsSet, Value: unix.PROT_EXEC})
	}
	if s.on("LockPersonality") {
		add("personality", seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: 0})
	}
	if s.on("RestrictRealtime") {
		add("sched_setscheduler", seccomp.Condition{Argument: 1, Operation: seccomp.NotEqual, Value: 0})
	}
	// Last: after a call with several conditions the library goes on with the next call's conditions, whatever the call.
	if allowed := s.words("RestrictAddressFamilies"); len(allowed) > 0 {
		var other []seccomp.Condition // all of them hold
		for _, name := range allowed {
			other = append(other, seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: families[name]})
		}
		add("socket", other...)
	}
	return list
}
