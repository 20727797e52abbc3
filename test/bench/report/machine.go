package report

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where a run took place.
type Machine struct {
	CPU      string
	Cores    int
	MemoryGB int
	Kernel   string
	System   string
	Load     string // the three load averages when the run began
	Versions []string
}

// ThisMachine asks the system. What it does not tell stays empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: after("/proc/cpuinfo", "model name\t: "), System: strings.Trim(after("/etc/os-release", "PRETTY_NAME="), `"`)}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var kB int
	if _, err := fmt.Sscanf(after("/proc/meminfo", "MemTotal:"), "%d", &kB); err == nil {
		m.MemoryGB = (kB + 1<<19) >> 20
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	for _, argv := range [][]string{{"ovs-vswitchd", "--version"}, {"iptables", "--version"}, {"nft", "--version"}} {
		if out, err := exec.Command(argv[0], argv[1:]...).Output(); err == nil {
			first, _, _ := strings.Cut(string(out), "\n")
			m.Versions = append(m.Versions, first)
		}
	}
	return m
}

// Busy reports whether others used more than half of the machine when the run began.
func (m Machine) Busy() bool {
	first, _, _ := strings.Cut(m.Load, " ")
	load, err := strconv.ParseFloat(first, 64)
	return err == nil && load > float64(m.Cores)/2
}

// after returns the rest of the first line of a file that begins with a text.
func after(file, begin string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, begin); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
