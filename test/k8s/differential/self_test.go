package differential

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/oracle"
)

// Whatever nkp answers differently from what it does answer, no reason explains it: they are as narrow as they claim.
func TestReasonsAreNarrow(t *testing.T) {
	asked := 0
	for seed := range uint64(300) {
		k, n := NewKubeProxy(), oracle.NewNkp()
		for _, e := range oracle.Generate(seed).Events {
			switch {
			case e.Asks():
			case e.Object == nil:
				k.Apply(e.Gone, nil)
				n.Apply(e.Gone, nil)
			default:
				o := stored(e.Object)
				k.Apply(e.Ref(), o)
				n.Apply(e.Ref(), o)
			}
		}
		k.Sync()
		if err := n.Sync(); err != nil {
			t.Fatal(err)
		}
		theirs, ours := k.Facts(), n.Facts()
		for fact, text := range ours {
			wrong := []string{text + "x", "", strings.TrimSuffix(text, "]") + " 10.0.0.77:8080]"}
			switch text {
			case "reject":
				wrong = append(wrong, "drop")
			case "drop":
				wrong = append(wrong, "reject")
			}
			for _, w := range wrong {
				d := oracle.Disagreement{Fact: fact, KubeProxy: theirs[fact], Nkp: w}
				if names := explain(k, d); len(names) > 0 && d.KubeProxy != w {
					t.Errorf("seed %d: %v would explain %+v", seed, names, d)
				}
				asked++
			}
		}
	}
	if t.Logf("%d wrong answers", asked); asked == 0 {
		t.Error("no answer was made wrong")
	}
}

// A failing case is shrunk to what it takes: here one Service with a UDP port, and one endpoint that is terminating.
func TestShrink(t *testing.T) {
	fails := func(c oracle.Case) bool {
		udp, terminating := false, false
		for _, e := range c.Events {
			switch o := e.Object.(type) {
			case *v1.Service:
				for _, p := range o.Spec.Ports {
					udp = udp || p.Protocol == v1.ProtocolUDP
				}
			case *discoveryv1.EndpointSlice:
				for _, p := range o.Endpoints {
					terminating = terminating || p.Conditions.Terminating != nil && *p.Conditions.Terminating
				}
			}
		}
		return udp && terminating
	}
	shrunk := 0
	for seed := range uint64(100) {
		c := oracle.Generate(seed)
		if !fails(c) {
			continue
		}
		shrunk++
		c = shrink(c, fails, time.Minute)
		if !fails(c) || len(c.Events) != 2 {
			t.Fatal(report(seed, c, Result{}))
		}
		for _, e := range c.Events {
			switch o := e.Object.(type) {
			case *v1.Service:
				if len(o.Spec.Ports) != 1 || o.Spec.ClusterIP != "" {
					t.Fatal(report(seed, c, Result{}))
				}
			case *discoveryv1.EndpointSlice:
				if len(o.Endpoints) != 1 || o.Endpoints[0].Conditions.Ready != nil || len(o.Ports) != 0 {
					t.Fatal(report(seed, c, Result{}))
				}
			}
		}
	}
	if shrunk == 0 {
		t.Error("no case fails")
	}
}
