package pipeline_test

import (
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
)

// One endpoint more changes one group, if there were at least two. The Delta is what goes to the switch, as one bundle.
func ExampleCompiler() {
	c, err := pipeline.NewCompiler(pipeline.Config{Layout: pipeline.DefaultLayout()})
	if err != nil {
		fmt.Println(err)
		return
	}
	web := k8s.ServicePort{
		Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: "TCP", Family: k8s.IPv4},
		Frontends: []k8s.Frontend{
			{Type: k8s.ClusterIP, Address: netip.MustParseAddr("10.96.0.10"), Port: 80, Policy: k8s.Cluster, WhenEmpty: k8s.Reject},
		},
		ClusterEndpoints: []k8s.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.11:8080")}, {Addr: netip.MustParseAddrPort("10.0.0.12:8080")},
		},
	}
	c.Load(map[k8s.PortName]*k8s.ServicePort{web.Name: &web})

	more := web
	more.ClusterEndpoints = append(more.ClusterEndpoints, k8s.Endpoint{Addr: netip.MustParseAddrPort("10.0.0.13:8080")})
	d := c.Update(map[k8s.PortName]*k8s.ServicePort{web.Name: &more})
	fmt.Printf("%d flows, %d groups\n", len(d.SetFlows)+len(d.DelFlows), len(d.SetGroups)+len(d.DelGroups))
	fmt.Println(d.SetGroups[0].Head(), "with", len(d.SetGroups[0].Buckets), "buckets, one for each slot of the hash")
	// Output:
	// 0 flows, 1 groups
	// group_id=1622801024,type=select,selection_method=dp_hash with 16 buckets, one for each slot of the hash
}
