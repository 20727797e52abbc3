//go:build linux

package packets

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/agent"
)

// A Service whose ports × addresses would be a million flows is refused by name; its neighbours, and nkp's memory, do not notice. It is
// served once it fits.
func TestLargeServiceIsRefused(t *testing.T) {
	const most = 100 // MB that nkp may take more
	web := service("web", "40.0.0.1")
	c := start(t, web)
	c.put(slice(web, 8080, at(c.pods[0].IP4)))
	c.settle()
	c.reachable(t, "40.0.0.1:80")
	before := c.resident(t)

	large := func(ports int) *v1.Service {
		return service("large", "40.0.0.2", func(s *v1.Service) {
			s.Spec.Ports = nil
			for i := range ports {
				s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i), Protocol: v1.ProtocolTCP})
			}
			for i := range 1000 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, vip(50, i))
			}
		})
	}
	c.put(large(1000))
	c.statusSays("Service default/large: is not served", "--cost-limit")
	if out, _, _ := c.nkp("services", "default/large", "--socket", c.socket()); !strings.Contains(out, "--cost-limit") {
		t.Errorf("nkp services default/large: %s", out)
	}
	c.put(slice(web, 8080, at(c.pods[1].IP4)))
	c.settle()
	c.reachable(t, "40.0.0.1:80")
	after := c.resident(t)
	t.Logf("nkp's resident memory: %d MB before, %d MB with the Service", before, after)
	if after > before+most {
		t.Errorf("nkp grew from %d MB to %d MB", before, after)
	}

	small := large(1)
	c.put(small, slice(small, 8080, at(c.pods[0].IP4)))
	c.settle()
	c.reachable(t, "40.0.0.2:80")
}

// A large Service comes in portions. Until the last one is on the switch, status does not say that it is in step.
func TestInStepIsWithAllPortions(t *testing.T) {
	c := start(t)
	large := service("large", "40.0.0.2", func(s *v1.Service) {
		s.Spec.Ports = nil
		for i := range 100 {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i), Protocol: v1.ProtocolTCP})
		}
		for i := range 1000 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, vip(50, i))
		}
	})
	c.settle()
	before := c.status(t).Source.Revision
	caller := agent.NewCaller(c.socket())
	defer caller.Close()
	c.put(large)
	var first *agent.Status
	c.eventually("a status in step", func() (err error) {
		if first, err = caller.Status(c.ctx); err != nil {
			return err
		} else if r := first.Source.Revision; r == "" || r == before || !first.InStep { // "": changes are still to be applied
			return fmt.Errorf("revision %s, %d flows", first.Source.Revision, first.Flows)
		}
		return nil
	})
	c.settle()
	last := c.status(t)
	if t.Logf("%d flows", last.Flows); last.Flows < 100_000 || first.Flows < last.Flows {
		t.Errorf("in step with %d flows of %d", first.Flows, last.Flows)
	}
}
