package main

import (
	"strings"
	"testing"
)

// Each release of Kubernetes has a module file that pins it and its staging modules, and files of its own.
func TestReleases(t *testing.T) {
	for _, release := range releases {
		s := &settings{root: "../..", work: "/w", release: release}
		version, err := s.moduleField(t.Context(), "k8s", "k8s.io/kubernetes", "Version")
		if err != nil {
			t.Fatalf("%q: %v", release, err)
		}
		if !strings.HasPrefix(version, "v1.") || release != "" && !strings.HasPrefix(version, "v"+release+".") {
			t.Errorf("%q: k8s.io/kubernetes %s", release, version)
		}
		for _, staging := range []string{"k8s.io/kubelet", "k8s.io/component-base"} {
			if v, err := s.moduleField(t.Context(), "k8s", staging, "Replace.Version"); err != nil || v != strings.Replace(version, "v1.", "v0.", 1) {
				t.Errorf("%q: %s %s, %v", release, staging, v, err)
			}
		}
		if got, shared := s.kube("bin/kubelet"), s.bin("kubelet"); (got == shared) != (release == "") {
			t.Errorf("%q: %s", release, got)
		}
	}
}
