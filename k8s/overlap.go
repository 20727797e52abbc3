package k8s

import (
	"fmt"
	"net/netip"
	"slices"
)

// EventOverlap is the reason of the Event about an address that overlaps one of the cluster's own.
const EventOverlap = "ExternalAddressOverlaps"

// addressBook maps each address to the Services that have it as their cluster IP, and to those that have it
// as an external IP or load balancer address. Each list is sorted.
type addressBook struct {
	cluster, external map[netip.Addr][]ServiceName
}

func newAddressBook() addressBook {
	return addressBook{map[netip.Addr][]ServiceName{}, map[netip.Addr][]ServiceName{}}
}

// enter adds or removes the addresses of a Service. It returns the Services whose external addresses begin or
// cease to overlap a cluster IP as a result.
func (b addressBook) enter(name ServiceName, ports []portDef, add bool) (touched []ServiceName) {
	for _, shared := range sharedBy(ports) {
		for i := range shared.frontends {
			f := &shared.frontends[i]
			book := b.external
			if f.Type == ClusterIP {
				book = b.cluster
			}

			at, there := slices.BinarySearchFunc(book[f.Address], name, ServiceName.Compare)
			switch {
			case add == there: // it has the address twice
				continue
			case add:
				book[f.Address] = slices.Insert(book[f.Address], at, name)
			case len(book[f.Address]) == 1:
				delete(book, f.Address)
			default:
				book[f.Address] = slices.Delete(book[f.Address], at, at+1)
			}

			if f.Type == ClusterIP {
				touched = append(touched, b.external[f.Address]...)
			}
		}
	}
	return touched
}

// overlaps warns of external IPs and load balancers' addresses that are another Service's cluster IP, an
// address of this node, or inside a Service range. A load balancer may use the node's address, as the one of
// K3s does: there is no warning about that.
func (t *Tracker) overlaps(s *service) (list []Warning) {
	for _, shared := range sharedBy(s.ports) {
		for i := range shared.frontends {
			f := &shared.frontends[i]
			if f.Type != ExternalIP && f.Type != LoadBalancer {
				continue
			}
			if text := t.overlap(s.name, f); text != "" && len(list) <= maxWarnings {
				list = append(list, Warning{Field: f.field, Text: text, Event: EventOverlap})
			}
		}
	}
	return list
}

func (t *Tracker) overlap(name ServiceName, f *frontendDef) string {
	const advice = "If this is not intended, remove it"
	owners := t.addresses.cluster[f.Address]
	if skipped, ok := t.SkippedAt(f.Address); ok {
		owners = append(slices.Clip(owners), skipped)
	}

	for _, owner := range owners {
		if owner != name {
			return fmt.Sprintf("%s is the cluster IP of Service %s. That Service keeps its own ports; "+
				"this one takes all others that it names (CVE-2020-8554). Remove it",
				f.Address, owner)
		}
	}

	if slices.Contains(t.addresses.cluster[f.Address], name) {
		return "" // its own cluster IP: winner reports conflicts per port
	}
	if f.Type == ExternalIP && slices.Contains(t.model.Node.Local, f.Address) {
		return fmt.Sprintf("%s is an address of node %s: this Service's ports there lead to the Service, "+
			"not to programs of the node that listen on them. %s",
			f.Address, t.model.Node.Name, advice)
	}
	for _, r := range t.model.ServiceCIDRs {
		if r.Contains(f.Address) {
			return fmt.Sprintf("%s is inside the Service range %s: "+
				"a Service that gets it as its cluster IP takes it over. %s", f.Address, r, advice)
		}
	}
	return ""
}
