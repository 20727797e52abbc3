//go:build linux

package windows

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/service"
)

// built builds a program of ./cmd, once for a test.
func built(t *testing.T, name string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), name+".exe")
	if err := winebed.BuildWindows("./cmd/"+name, exe); err != nil {
		t.Fatal(err)
	}
	return exe
}

// installer is a host on which nkp is installed as a service.
type installer struct {
	*host
	program string // where it is installed
}

// newInstaller returns a host without nkp's service.
func newInstaller(t *testing.T, flags ...string) *installer {
	t.Helper()
	h := &installer{newHost(t, hns.NetworkOverlay, newest, flags...), prefix.DriveC("Program Files", "nkp", "nkp.exe")}
	h.ForServices()
	h.service = true
	t.Cleanup(func() {
		h.nkp("windows-service", "uninstall") // what a failed test left
		for _, f := range []string{"idle.log", "idle-source"} {
			os.Remove(prefix.DriveC(f))
		}
	})
	return h
}

// install runs install with nkp's flags after --; there is no service hns here.
func (h *installer) install(status int, flags []string, says ...string) string {
	h.t.Helper()
	return h.expect(status, "windows-service", slices.Concat([]string{"install", "--depends-on="}, flags, []string{"--"}, h.args()[1:]), says...)
}

// state returns what nkp windows-service status says.
func (h *installer) state() (st service.State) {
	h.t.Helper()
	out, err := h.nkp("windows-service", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		h.t.Fatalf("status: %v\n%s", err, out)
	}
	if (err == nil) != (st.State == "running") {
		h.t.Errorf("status of a service that is %s: %v", st.State, err)
	}
	return st
}

// untouched checks that no nkp is installed.
func (h *installer) untouched(when string) {
	h.t.Helper()
	if st := h.state(); st.State != "not installed" {
		h.t.Errorf("%s: the service is %s", when, st.State)
	}
	if _, err := os.Stat(filepath.Dir(h.program)); err == nil {
		h.t.Errorf("%s: the program's directory is there", when)
	}
}

// noCopies checks that no copy is left of a program that was checked.
func (h *installer) noCopies(when string) {
	h.t.Helper()
	files, err := os.ReadDir(filepath.Dir(h.program))
	if err != nil {
		h.t.Error(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".new.exe") {
			h.t.Errorf("%s: there is %s", when, f.Name())
		}
	}
}

// The way of a node from kube-proxy to nkp, its upgrades, and back: a step that fails leaves the node as it was.
func TestServiceInstall(t *testing.T) {
	port := freePort(t)
	h := newInstaller(t, "--root-hnsendpoint-name", `the "root"\`, "--healthz-bind-address", fmt.Sprintf("0.0.0.0:%s", port))
	h.flags = append(h.flags, "--hns-state-file", winebed.Windows(h.Path(`state of nkp/hns.json`)))
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	idle := built(t, "idle")
	kubeProxy := []string{"create", "kube-proxy", "binPath=", winebed.Windows(idle), "start=", "demand", "DisplayName=", "kube-proxy"}
	if out, err := h.Run("sc", kubeProxy...); err != nil {
		t.Fatalf("sc create: %v\n%s", err, out)
	}
	t.Cleanup(func() { h.Run("net", "stop", "kube-proxy"); h.Run("sc", "delete", "kube-proxy") })
	if out, err := h.Run("net", "start", "kube-proxy"); err != nil {
		t.Fatalf("net start: %v\n%s", err, out)
	}
	text := h.Path("text.exe")
	if err := os.WriteFile(text, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}

	// What the checks find.
	h.install(1, nil, `the service "kube-proxy" runs`, "sc.exe config kube-proxy start= disabled, and sc.exe stop kube-proxy")
	h.untouched("beside kube-proxy")
	if out, _ := h.Run("net", "start"); !strings.Contains(out, "kube-proxy") {
		t.Errorf("install stopped kube-proxy; these services run:\n%s", out)
	}
	if out, err := h.Run("net", "stop", "kube-proxy"); err != nil {
		t.Fatalf("net stop: %v\n%s", err, out)
	}
	h.install(1, []string{"--binary", `C:\nowhere\nkp.exe`}, "nowhere")
	h.install(1, []string{"--binary", winebed.Windows(text)}, "does not answer as nkp does")
	h.install(1, []string{"--sha256", strings.Repeat("0", 64)}, "checksum", strings.Repeat("0", 64))
	h.expect(2, "windows-service", []string{"install", "--", "--network-nam", "Calico"}, "could not start", "--network-nam")
	h.expect(1, "windows-service", []string{"install", "--", "--kubeconfig", `C:\nowhere\config`}, "nowhere")
	h.expect(2, "windows-service", []string{"install", "run"}, "flags of run follow --")
	h.install(0, []string{"--dry-run"}, "copy ", "create the service nkp", "start the service nkp")
	lax := prefix.DriveC("lax") // with the very program, made by another user
	t.Cleanup(func() { os.RemoveAll(lax) })
	data, err := os.ReadFile(nkpExe)
	if err = errors.Join(err, os.Mkdir(lax, 0o755), os.Chmod(lax, 0o777)); err == nil {
		err = os.WriteFile(filepath.Join(lax, "nkp.exe"), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.install(1, []string{"--directory", `C:\lax`, "--dry-run"}, `C:\lax may be changed by Everyone`, "--directory")
	if err := os.Mkdir(filepath.Join(lax, "nkp"), 0o755); err != nil { // in order itself, but everyone can replace it
		t.Fatal(err)
	}
	for _, dir := range []string{`C:\lax\nkp`, `C:\lax\nkp\none`} {
		h.install(1, []string{"--directory", dir, "--dry-run"}, `C:\lax may be changed by Everyone (S-1-1-0), which has the right FILE_DELETE_CHILD`, dir+" can be replaced", "icacls")
	}
	h.expect(1, "windows-service", []string{"upgrade"}, "not installed")
	h.untouched("after the checks")

	// What fails later.
	exchanged := h.Path("exchanged.exe") // while it is checked
	program, err := os.ReadFile(idle)
	if err = errors.Join(err, os.WriteFile(exchanged, program, 0o755)); err == nil {
		err = os.WriteFile(prefix.DriveC("idle-source"), []byte(winebed.Windows(exchanged)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	failed := h.install(1, []string{"--binary", winebed.Windows(exchanged)}, "cannot start the service nkp", "it ends again", "undo: ")
	h.untouched("after a program that fails:\n" + failed)
	if ran, err := os.ReadFile(prefix.DriveC("idle.log")); !strings.HasPrefix(string(ran), `C:\Program Files\nkp\`) {
		t.Errorf("the program was checked as %s, %v: not in the directory that only administrators may change", ran, err)
	}
	if data, err := os.ReadFile(exchanged); string(data) != "another program" {
		t.Errorf("the source was not exchanged: %v", err)
	}

	// The installation, and a second one.
	h.install(0, nil)
	h.greet()
	h.has(1)
	first := h.state()
	if first.State != "running" || !slices.Equal(first.Args, h.args()[1:]) {
		t.Errorf("the service is %s with flags\n%q, want\n%q", first.State, first.Args, h.args()[1:])
	}
	h.expect(0, "windows-service", []string{"status", "-o", "yaml"}, "state: running")
	h.install(0, nil)
	if again := h.state(); again.PID != first.PID {
		t.Errorf("a second installation: %+v, was %+v", again, first)
	}

	// Upgrades.
	before := h.sum()
	h.expect(1, "windows-service", []string{"upgrade", "--sha256", strings.Repeat("0", 64)}, "checksum")
	h.noCopies("after an upgrade with another checksum")
	if st := h.state(); st.PID != first.PID || h.sum() != before {
		t.Errorf("after an upgrade with another checksum: %+v", st)
	}
	h.expect(1, "windows-service", []string{"upgrade", "--binary", winebed.Windows(idle)}, "it ends again", "undo: ")
	h.noCopies("after a failed upgrade")
	if st := h.state(); st.State != "running" || st.StartType != "automatic" || h.sum() != before || !slices.Equal(st.Args, first.Args) {
		t.Errorf("after a failed upgrade: %+v", st)
	}
	newer := h.Path("newer.exe")
	if err := os.WriteFile(newer, append(data, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%X", sha256.Sum256(append(data, 0)))
	h.expect(0, "windows-service", []string{"upgrade", "--binary", winebed.Windows(newer), "--sha256", sum}, "keep the old one")
	if st := h.state(); st.State != "running" || st.PID == first.PID || !strings.EqualFold(h.sum(), sum) || !slices.Equal(st.Args, first.Args) {
		t.Errorf("after an upgrade: %+v", st)
	}
	if _, err := os.Stat(h.program + ".old"); err != nil {
		t.Error(err)
	}
	h.noCopies("after an upgrade")
	if err := os.WriteFile(strings.Replace(h.program, "nkp.exe", "nkp-7.new.exe", 1), nil, 0o644); err != nil { // of an upgrade that was killed
		t.Fatal(err)
	}

	// And back.
	h.expect(0, "windows-service", []string{"uninstall", "--dry-run"}, "delete the service nkp")
	if st := h.state(); st.State != "running" {
		t.Errorf("after a dry run the service is %s", st.State)
	}
	h.expect(0, "windows-service", []string{"uninstall", "--cleanup"}, "removed 3 objects from HNS")
	if st := h.state(); st.State != "not installed" {
		t.Errorf("after uninstall: %+v", st)
	}
	if _, err := os.Stat(filepath.Dir(h.program)); err == nil {
		t.Error("the program's directory is still there")
	}
	h.expect(0, "windows-service", []string{"uninstall"}, "not installed")
}

// sum returns the checksum of the installed program.
func (h *installer) sum() string {
	h.t.Helper()
	data, err := os.ReadFile(h.program)
	if err != nil {
		h.t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
