//go:build linux

package packets

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/testbed"
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
	caller := api.NewCaller(c.socket())
	defer caller.Close()
	c.put(large)
	var first *api.Status
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

// At a start the first bundle brings in step what is installed, and adds Services that are not large. Large ones of which the switch has
// nothing come behind it in portions. After that a restart changes nothing, and one with a new large Service leaves all others alone.
func TestStartBesideLargeServices(t *testing.T) {
	const most = 5000 // flows of a bundle: two portions
	ports, more := 40, 20
	if onKernelDatapath() { // an emulated machine is slow: as many as are divided at all
		ports, more = 12, 11
	}
	large := func(name, ip string, net, ports int) *v1.Service {
		return service(name, ip, func(s *v1.Service) {
			s.Spec.Ports = nil
			for i := range ports {
				s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i), Protocol: v1.ProtocolTCP})
			}
			for i := range 1000 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, vip(net, i))
			}
		})
	}
	web, first, second := service("web", "40.0.0.1"), large("first", "40.0.0.2", 50, ports), large("second", "40.0.0.3", 51, more)
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	behind := func(s *v1.Service) *discoveryv1.EndpointSlice { // the pod serves all ports
		out := slice(s, 8080, at(c.pods[0].IP4))
		port := out.Ports[0].Port
		out.Ports = nil
		for _, p := range s.Spec.Ports {
			out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: port})
		}
		return out
	}
	c.put(web, behind(web), first, behind(first))
	c.servePods(t)

	// bundles returns how many flows the bundle after the read-back sets, and each one since.
	bundles := func() (read int, all []int) {
		text := c.agent.Log.String()
		if m := regexp.MustCompile(`bringing the switch in step" setFlows=(\d+)`).FindStringSubmatch(text); m != nil {
			read, _ = strconv.Atoi(m[1])
		}
		for _, m := range regexp.MustCompile(`"switch is in step" flows=(\d+)`).FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(m[1])
			all = append(all, n)
		}
		return read, all
	}
	served := func(to ...string) {
		t.Helper()
		for _, addr := range to {
			c.ask(t, c.pods[1].Host, "tcp", addr, c.pods[0].Name)
		}
	}

	c.run()
	c.settle()
	read, all := bundles()
	if t.Logf("%d flows at first, then %v", read, all); read == 0 || read > 1000 || len(all) < 5 || slices.Max(all) > most {
		t.Errorf("%d flows at first, then bundles of %v, want %d at most", read, all, most)
	}
	last := fmt.Sprint("40.0.0.2:", 79+ports)
	served("40.0.0.1:80", "40.0.0.2:80", last, "50.0.0.1:90")
	if _, err := c.pods[1].Ask(c.ctx, "tcp", "40.0.0.2:1000"); !errors.Is(err, testbed.ErrRefused) {
		t.Errorf("a port that the Service does not have: %v, want a refusal", err)
	}

	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	if read, all := bundles(); read > 0 || len(all) > 1 {
		t.Errorf("a restart sets %d flows, then %v", read, all)
	}

	must(t, c.agent.Stop(syscall.SIGTERM))
	c.put(second, behind(second))
	c.run()
	c.settle()
	if read, all := bundles(); read > 100 || len(all) < 3 || slices.Max(all) > most {
		t.Errorf("a restart with a new Service sets %d flows, then %v", read, all)
	}
	served("40.0.0.1:80", last, fmt.Sprint("40.0.0.3:", 79+more), "51.0.0.1:80")
}
