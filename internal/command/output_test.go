package command

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// say runs a command and returns what it prints and its exit status.
func say(args ...string) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	status = Main("nkp", args, &out, &err)
	return out.String(), err.String(), status
}

const guestbook = "../../examples/guestbook.yaml"

// YAML has the fields and values of JSON.
func TestYAMLIsJSON(t *testing.T) {
	socket := fakeAgent(t)
	for _, command := range []string{
		"version", "plan --manifests " + guestbook, "trace --from 10.0.0.5 --to 10.96.0.10:53 --manifests " + guestbook,
		"services --socket " + socket, "status --socket " + socket, "diff --socket " + socket,
	} {
		var values [2]any
		for i, format := range []string{"json", "yaml"} {
			out, errOut, _ := say(append(strings.Fields(command), "-o", format)...)
			if err := yaml.Unmarshal([]byte(out), &values[i]); err != nil || values[i] == nil {
				t.Errorf("%s -o %s: %v, %q, %q", command, format, err, out, errOut)
			}
			if valid := json.Valid([]byte(out)); valid != (format == "json") {
				t.Errorf("%s -o %s prints %s", command, format, out)
			}
		}
		if !reflect.DeepEqual(values[0], values[1]) {
			t.Errorf("%s: JSON %v, YAML %v", command, values[0], values[1])
		}
	}
}

// An error about a name that is no command, flag or value suggests similar ones, in one line.
func TestSuggestions(t *testing.T) {
	for args, want := range map[string]string{
		"sttaus":                 `unknown command "sttaus"; did you mean status?`,
		"sttaus -o json":         `unknown command "sttaus"; did you mean status?`,
		"frobnicate":             `unknown command "frobnicate"; "nkp --help" lists`,
		"windows-service instal": `takes no argument, got "instal"; did you mean install?`,
		"plan --manifest x":      "unknown flag: --manifest; did you mean --manifests?",
		"services --namspace x":  "unknown flag: --namspace; did you mean --namespace?",
		"status --zzz":           `unknown flag: --zzz; see "nkp status --help"`,
		"status -o jsno":         `-o "jsno" is not text, json or yaml; did you mean json?`,
		"services -o JSON":       `-o "JSON" is not text, wide, json or yaml; did you mean json?`,
		"plan -o iptable":        `-o "iptable" is not text, ofctl, iptables, nft, hcn, json or yaml; did you mean iptables?`,
		"plan --mode iptabels":   `--mode "iptabels" is not auto, ovs, iptables, nftables or windows; did you mean iptables?`,
		"plan --host-traffic of": `--host-traffic "of" is not auto, ovs, iptables, nftables or off; did you mean off, ovs?`,
		"trace --from 1.2.3.4 --to 1.2.3.4:80 --protocol tpc": "did you mean tcp?",
		"run --log-level debgu --manifests x":                 "did you mean debug?",
		"run --manifests x --detect-local-mode clustercidr":   "did you mean ClusterCIDR?",
	} {
		out, errOut, status := say(strings.Fields(args)...)
		if status != exitUsage || out != "" || !strings.Contains(errOut, want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("nkp %s: status %d, %q, %q\nwant %q", args, status, out, errOut, want)
		}
	}
}

// plan accepts each flag of run, and those that do not concern a plan change nothing.
func TestPlanTakesRunFlags(t *testing.T) {
	base := []string{"plan", "--manifests", guestbook, "--hostname-override", "haofan-test-1", "-o", "json"}
	want, _, _ := say(base...)
	plan, flags := newPlan(), 0
	listed := 0
	newRun().Flags().VisitAll(func(f *pflag.Flag) {
		flags++
		mine := plan.Flags().Lookup(f.Name)
		switch {
		case mine == nil:
			t.Errorf("plan has no --%s", f.Name)
		case !mine.Hidden:
			listed++
		default:
			value := f.DefValue
			if f.Value.Type() == "bool" {
				value = "true"
			}
			if f.Name == "write-config-to" {
				value = t.TempDir() + "/not-written"
			}
			out, errOut, status := say(append(base, "--"+f.Name+"="+value)...)
			if f.DefValue != "" && status != exitOK || status == exitOK && out != want {
				t.Errorf("plan --%s=%s: status %d, %q", f.Name, value, status, errOut)
			}
		}
	})
	if flags < 100 || listed < 40 {
		t.Errorf("run has %d flags, of which plan lists %d", flags, listed)
	}
	unit := "--init-only --cleanup --version --windows-service --metrics-bind-address=127.0.0.1:10249 --audit-period=30s --conntrack-min 0 --ipvs-scheduler=rr -v 4 --ovs-wait 5m"
	if out, errOut, status := say(append(base, strings.Fields(unit)...)...); status != exitOK || out != want || strings.Count(errOut, "\n") != 1 {
		t.Errorf("plan %s: status %d, %q", unit, status, errOut)
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plan prints the frontends that the mode serves: on Windows nobody listens at [::1].
func TestPlanOfMode(t *testing.T) {
	file := t.TempDir() + "/web.yaml"
	must(t, os.WriteFile(file, []byte(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: fd00:40::1
  clusterIPs: [fd00:40::1]
  ipFamilies: [IPv6]
  ports: [{port: 80, nodePort: 30080, protocol: TCP}]
`), 0o600))
	for mode, want := range map[string]bool{"ovs": true, "nftables": true, "iptables": true, "windows": false} {
		for _, form := range []string{"json", "yaml"} {
			out, errOut, status := say("plan", "--manifests", file, "--hostname-override", "n1", "-o", form,
				"--nodeport-addresses", "::1/128", "--mode", mode)
			if status != exitOK || regexp.MustCompile(`address"?: ["']?::1["']?`).MatchString(out) != want {
				t.Errorf("mode %s, %s: status %d, %s%s", mode, form, status, out, errOut)
			}
		}
	}
}
