package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// The workflow runs every suite of .ci/run, and no other.
func TestWorkflow(t *testing.T) {
	run, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^suite ([a-z0-9-]+)`).FindAllSubmatch(run, -1) {
		want = append(want, string(m[1]))
	}
	data, err := os.ReadFile(".github/workflows/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var ci struct {
		Jobs struct {
			Suite struct {
				Strategy struct {
					Matrix struct{ Suite []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &ci); err != nil {
		t.Fatal(err)
	}
	if have := ci.Jobs.Suite.Strategy.Matrix.Suite; len(want) == 0 || !slices.Equal(have, want) {
		t.Errorf("ci.yml runs %q, .ci/run %q", have, want)
	}
}
