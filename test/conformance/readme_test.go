package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The page's commands are taken in their order and as they are: images on each node, and neither the copy to a registry nor Helm beside them.
func TestInstallSteps(t *testing.T) {
	text, err := os.ReadFile("../../" + installPage)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := installSteps(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i, s := range steps {
		all = append(all, s.command)
		if s.eachNode != (i == 0) {
			t.Errorf("on each node: %v: %s", s.eachNode, s.command)
		}
	}
	for _, want := range []string{"images import", exampleAPI, "apply -k deploy/kubernetes/auto", "rollout status", "nkp status"} {
		if !slices.ContainsFunc(all, func(c string) bool { return strings.Contains(c, want) }) {
			t.Errorf("no command has %q: %q", want, all)
		}
	}
	if joined := strings.Join(all, "\n"); strings.Contains(joined, "skopeo") || strings.Contains(joined, "helm") || strings.Contains(joined, "#") {
		t.Error(joined)
	}
	for _, bad := range []string{"", "\n## Install it\nnothing\n"} {
		if steps, err := installSteps(bad); err == nil {
			t.Errorf("%q: %+v", bad, steps)
		}
	}
}

// The API server's address is found in what kubectl cluster-info prints, colours or not.
func TestAPIServer(t *testing.T) {
	for _, text := range []string{
		"Kubernetes control plane is running at https://172.16.0.1:6443\nCoreDNS is", "\x1b[0;32mKubernetes control plane\x1b[0m is running at \x1b[0;33mhttps://172.16.0.1:6443\x1b[0m",
	} {
		if found, err := apiServerIn(text); err != nil || found != "172.16.0.1" {
			t.Errorf("%q: %q, %v", text, found, err)
		}
	}
	if found, err := apiServerIn("refused"); err == nil {
		t.Error(found)
	}
}
