package hnsfake

import (
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// subnetted is the part of a network that endpoints get their addresses from.
type subnetted struct {
	Ipams []struct {
		Subnets []struct {
			Prefix string `json:"IpAddressPrefix"`
			Routes []struct{ NextHop, DestinationPrefix string }
		}
	}
}

// fromV1 gives a network of the first API's form the subnets that the second one has.
func fromV1(o Object) {
	var subnets []any
	for _, s := range decode[struct {
		Subnets []struct{ AddressPrefix, GatewayAddress string }
	}](o).Subnets {
		subnets = append(subnets, map[string]any{"IpAddressPrefix": s.AddressPrefix,
			"Routes": []any{map[string]any{"NextHop": s.GatewayAddress, "DestinationPrefix": "0.0.0.0/0"}}})
	}
	if len(subnets) > 0 {
		o["Ipams"] = []any{map[string]any{"Subnets": subnets}}
	}
}

// badNetwork refuses a subnet with routes none of which is a default route with a gateway.
func badNetwork(o Object) *Reply {
	for _, ipam := range decode[subnetted](o).Ipams {
		for _, s := range ipam.Subnets {
			good := len(s.Routes) == 0
			for _, r := range s.Routes {
				gateway, err := netip.ParseAddr(r.NextHop)
				good = good || err == nil && (r.DestinationPrefix == "0.0.0.0/0" && gateway.Is4() || r.DestinationPrefix == "::/0" && gateway.Is6())
			}
			if !good {
				r := failure(hns.CodeInvalidPolicy, "The subnet has no default gateway.")
				return &r
			}
		}
	}
	return nil
}

// assign gives an endpoint without an address the first free one of its network's subnets, and one without a MAC address one. A
// network without subnets has none to give.
func (s *Server) assign(o Object) {
	e := decode[hns.Endpoint](o)
	if e.MacAddress == "" {
		n := s.nextID + 1
		o["MacAddress"] = fmt.Sprintf("00-15-5D-%02X-%02X-%02X", byte(n>>16), byte(n>>8), byte(n))
	}
	if len(e.IpConfigurations) > 0 {
		return
	}
	for _, ipam := range decode[subnetted](s.objects[network][e.HostComputeNetwork]).Ipams {
		for _, subnet := range ipam.Subnets {
			prefix, err := netip.ParsePrefix(subnet.Prefix)
			if err != nil {
				continue
			}
			used := map[string]bool{}
			for _, r := range subnet.Routes {
				used[r.NextHop] = true
			}
			for a := prefix.Masked().Addr().Next(); prefix.Contains(a.Next()); a = a.Next() {
				if !used[a.String()] && s.claims[hns.CanonicalID(e.HostComputeNetwork)+" "+a.String()] == "" {
					o["IpConfigurations"] = []any{map[string]any{"IpAddress": a.String(), "PrefixLength": prefix.Bits()}}
					return
				}
			}
		}
	}
}
