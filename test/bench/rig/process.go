//go:build linux

package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// Process is a program that runs on a host of a bed.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  string        // file
	done chan struct{} // closed when it has ended
}

// startProcess starts a program, whose output goes to a file in dir.
func startProcess(h *testbed.Host, name, dir string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, log: log.Name(), done: make(chan struct{})}
	go func() { // ends with the process
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns an error with the end of the log if the process has ended.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %s", p.Name, p.Log())
	default:
		return nil
	}
}

// Log returns the last lines that the process wrote.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Stop asks the process to end, and after 20 s makes it.
func (p *Process) Stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// CPU returns the CPU time that a process has used, and its children that have ended: kube-proxy works through iptables and
// nft. It is exact to 10 ms.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// proc(5): the name may hold blanks, so the fields are counted from the bracket behind it: utime, stime, cutime and
	// cstime are numbers 14 to 17, in ticks of which a second has 100.
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if len(f) < 15 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	ticks := 0
	for _, s := range f[11:15] {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// Resident returns the memory of a process, now and the most so far, in units of a million bytes.
func Resident(pid int) (now, most float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, v := range []struct {
		name string
		to   *float64
	}{{"VmRSS", &now}, {"VmHWM", &most}} {
		_, rest, _ := strings.Cut(string(text), "\n"+v.name+":")
		if _, err := fmt.Sscanf(rest, "%f kB", v.to); err != nil {
			return 0, 0, fmt.Errorf("/proc/%d/status has no %s", pid, v.name)
		}
		*v.to *= 1024 / 1e6
	}
	return now, most, nil
}
