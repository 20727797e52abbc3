package differential

import (
	"bytes"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/test/oracle"
)

// report describes a failure: how to reproduce it, what happened, and both answers.
func report(seed uint64, c oracle.Case, r Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d; again: go test . -run 'TestDifferential$' -seed %d -cases 1\n", seed, seed)
	for _, d := range r.Failures {
		fmt.Fprintf(&b, "\n%s", d.What)
		if d.Port.Name != "" {
			fmt.Fprintf(&b, " of %s", d.Port.ID())
		}
		fmt.Fprintf(&b, " %s\n  kube-proxy: %s\n  nkp:        %s\n", d.At, d.KubeProxy, d.Nkp)
	}
	fmt.Fprintf(&b, "\nafter this, on node %s:\n", oracle.ThisNode)
	for i, e := range c.Events {
		switch {
		case e.Asks():
			fmt.Fprintf(&b, "--- # %d: asked\n", i+1)
		case e.Object == nil:
			fmt.Fprintf(&b, "--- # %d: gone: %s\n", i+1, e.Gone)
		default:
			raw, err := yaml.Marshal(e.Object)
			if err != nil {
				panic(err)
			}
			for _, noise := range []string{"  creationTimestamp: null\n", "status:\n  loadBalancer: {}\n", "endpoints: null\n", "ports: null\n", "spec: {}\n", "    targetPort: 0\n"} {
				raw = bytes.ReplaceAll(raw, []byte(noise), nil)
			}
			fmt.Fprintf(&b, "--- # %d: new or changed\n%s", i+1, raw)
		}
	}
	return b.String()
}
