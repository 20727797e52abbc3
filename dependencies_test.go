package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/golden"
)

// purpose says what nkp uses a module for. A module that nkp's own code imports must be here: adding one is a decision.
var purpose = map[string]string{
	"antrea.io/libOpenflow":               "encodings of OpenFlow 1.5 and Nicira actions, match fields and meters",
	"antrea.io/ofnet":                     "builds a template of each action and of the meter, once at the start; not its controller. Brings github.com/contiv/libovsdb along, which its package imports for its own OVSDB driver and nkp never calls",
	"github.com/Microsoft/go-winio":       "the control pipe on Windows, its access rights",
	"github.com/Microsoft/hcsshim":        "HCN: networks and load balancers of Windows nodes",
	"github.com/coreos/go-iptables":       "finds iptables, its version and its backend (nf_tables or legacy); rules go through iptables-restore",
	"github.com/coreos/go-systemd/v22":    "readiness and watchdog of the systemd unit",
	"github.com/fsnotify/fsnotify":        "changes of manifest and configuration files",
	"github.com/cenkalti/rpc2":            "JSON-RPC with the switch's database, as libovsdb does it",
	"github.com/google/nftables":          "encodings of nftables' expressions; not its connection, which loses what was refused (fallback/nftables/README.md)",
	"github.com/ovn-kubernetes/libovsdb":  "the switch's database (RFC 7047): notation, schema, the cache of rows; not its client, whose panics cannot be recovered (ovsdb/README.md)",
	"github.com/prometheus/client_golang": "metrics",
	"github.com/prometheus/procfs":        "which process holds a socket that a Service hides",
	"github.com/prometheus/client_model":  "metrics",
	"github.com/prometheus/common":        "metrics: the text format",
	"github.com/sirupsen/logrus":          "ofnet and libOpenflow log with it; passed on to nkp's log",
	"github.com/spf13/cobra":              "the command line",
	"github.com/spf13/pflag":              "the command line's flags",
	"github.com/vishvananda/netlink":      "addresses, routes and neighbours of the node; the connections that its kernel tracks",
	"github.com/vishvananda/netns":        "network namespaces, of netlink",
	"golang.org/x/sync":                   "errgroup, singleflight",
	"golang.org/x/sys":                    "system calls; the service manager of Windows",
	"golang.org/x/term":                   "the size of the terminal, for help and --watch",
	"k8s.io/api":                          "types of Services, EndpointSlices, Nodes",
	"k8s.io/apimachinery":                 "decoding and selecting them",
	"k8s.io/client-go":                    "lists, watches and Events at the API server",
	"k8s.io/component-base":               "defaults and validation of kube-proxy's logging configuration",
	"k8s.io/klog/v2":                      "client-go logs with it; passed on to nkp's log",
	"k8s.io/kube-proxy":                   "the type KubeProxyConfiguration",
	"k8s.io/streaming":                    "kubectl nkp: whether an exec failed because WebSockets do not pass",
	"k8s.io/utils":                        "small helpers of Kubernetes' types",
	"sigs.k8s.io/json":                    "strict decoding with the name of the field",
	"sigs.k8s.io/yaml":                    "YAML as Kubernetes reads it",
	"google.golang.org/protobuf":          "the encoding of objects on the wire",
}

// licences that may be linked into nkp, told by words of their texts; the first that fits counts.
var licences = []struct{ name, words string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"MPL-2.0", "mozilla public license"},
	{"MIT", "permission is hereby granted, free of charge"},
	{"BSD-3-Clause", "may be used to endorse or promote"},
	{"BSD-2-Clause", "redistribution and use in source and binary forms"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software"},
}

// linked is a module with code in a binary of nkp.
type linked struct {
	path, version, licence string
	direct                 bool
	by                     map[string]bool // modules that import it
}

// Every module in the binary has a licence that is fit for it, what nkp itself imports has a purpose, and docs/dependencies.md
// says both.
func TestDependencies(t *testing.T) {
	modules := map[string]*linked{}
	for _, goos := range []string{"linux", "windows"} {
		packages := inBinary(t, goos, `{{.ImportPath}}|{{with .Module}}{{.Path}}|{{.Version}}|{{with .Replace}}{{.Path}} {{.Version}}{{end}}|{{.Dir}}{{end}}|{{join .Imports " "}}`)
		of := map[string]string{}
		for _, p := range packages {
			f := strings.Split(p, "|")
			of[f[0]] = f[1]
			if modules[f[1]] == nil && f[1] != module {
				m := &linked{path: f[1], version: f[2], by: map[string]bool{}}
				if f[3] != "" {
					m.version = f[2] + " (from " + strings.Fields(f[3])[0] + ")"
				}
				m.licence = licenceOf(t, f[1], f[4])
				modules[f[1]] = m
			}
		}
		for _, p := range packages {
			f := strings.Split(p, "|")
			for _, imp := range strings.Fields(f[5]) {
				switch to := modules[of[imp]]; {
				case to == nil || of[imp] == f[1]:
				case f[1] == module:
					to.direct = true
				default:
					to.by[f[1]] = true
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Dependencies\n\nWhat is linked into nkp on Linux and Windows. `go test -run TestDependencies . -update` writes this file; the test\nfails if a module comes, goes or changes without it, if nkp's own code imports one that has no purpose, or if a licence is\nunknown.\n`make verify` compares what was downloaded with go.sum.\n\n## Imported by nkp\n\n| module | version | licence | what for |\n|---|---|---|---|\n")
	names := slices.Sorted(maps.Keys(modules))
	for _, n := range names {
		m := modules[n]
		if !m.direct {
			continue
		}
		if purpose[n] == "" {
			t.Errorf("%s is imported and has no purpose: say in dependencies_test.go what it is for, after a look at who keeps it and what it brings along", n)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", n, m.version, m.licence, purpose[n])
	}
	b.WriteString("\n## Imported by those\n\n| module | version | licence | imported by |\n|---|---|---|---|\n")
	for _, n := range names {
		if m := modules[n]; !m.direct {
			by := slices.Sorted(maps.Keys(m.by))
			if more := len(by) - 3; more > 0 {
				by = append(by[:3], fmt.Sprintf("%d more", more))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", n, m.version, m.licence, strings.Join(by, ", "))
		}
	}
	golden.Check(t, "docs/dependencies.md", b.String())
}

// licenceOf returns a module's licence by its text.
func licenceOf(t *testing.T, path, dir string) string {
	t.Helper()
	for _, name := range []string{"LICENSE", "license.md", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		words := strings.ToLower(strings.Join(strings.Fields(string(text)), " "))
		for _, l := range licences {
			if strings.Contains(words, l.words) {
				return l.name
			}
		}
	}
	t.Errorf("%s: no licence in %s that may be linked", path, dir)
	return "?"
}
