package main

import (
	"regexp"
	"strings"
)

// network selects the network tests.
const network = `\[sig-network\]`

// skip leaves out what a cluster of an IP family has not: a cloud, a way to the internet, SSH to the nodes, a network policy provider, SCTP.
func skip(family string) string {
	parts := []string{
		"Disruptive", "LoadBalancers", "Type LoadBalancer", "NetworkPolicy", "Netpol", "Network Policy", "Internet", "Provider:GCE", "Performance",
		"Feature:(GCE|NEG|BGP|SCTP)", "SCTP", "DNS configMap", `IngressClass \[Feature`,
	}
	if family != "dual" {
		parts = append(parts, "DualStack")
	}
	return strings.Join(parts, "|")
}

// smoke are tests that have found something in nkp, and the shortest of each kind of Service.
var smoke = []string{
	"Services should serve a basic endpoint from pods",
	"Services should allow pods to hairpin back to themselves through services",
	"Services should be able to create a functioning NodePort service",
	"Services should have session affinity timeout work for service with type clusterIP",
	"Services should have session affinity timeout work for NodePort service",
	"Services should be rejected when no endpoints exist",
	"Services should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local",
	"Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service",
	"Conntrack proxy implementation should not be vulnerable to the invalid conntrack state bug",
	"Granular Checks: Services should be able to handle large requests: udp",
	"Granular Checks: Services should function for service endpoints using hostNetwork",
	"KubeProxy should update metric for tracking accepted packets destined for localhost nodeports",
	"HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol",
	"DNS should provide DNS for services",
}

// focusOf returns the regular expression that selects tests by parts of their names.
func focusOf(parts []string) string {
	quoted := make([]string, len(parts))
	for i, p := range parts {
		// Labels such as [Slow] stand between the words of a name.
		quoted[i] = strings.ReplaceAll(regexp.QuoteMeta(p), " should ", " (.* )?should ")
	}
	return strings.Join(quoted, "|")
}

// missing returns the parts that no test's name has.
func missing(parts []string, results []result) (none []string) {
	for _, p := range parts {
		pattern := regexp.MustCompile(focusOf([]string{p}))
		found := false
		for _, r := range results {
			found = found || pattern.MatchString(r.Test)
		}
		if !found {
			none = append(none, p)
		}
	}
	return none
}
