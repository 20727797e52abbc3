package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// createAccount makes a service account in kube-system with rights of its own, and gives its token.
func (c *cluster) createAccount(name string, rules ...rbacv1.PolicyRule) string {
	c.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: "kube-system"}
	_, err := c.client.CoreV1().ServiceAccounts(meta.Namespace).Create(c.ctx, &v1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	must(c.t, err)
	c.allow(name, name, rules...)
	return c.token(name)
}

// allow gives a service account in kube-system a role.
func (c *cluster) allow(account, role string, rules ...rbacv1.PolicyRule) {
	c.t.Helper()
	meta := metav1.ObjectMeta{Name: role}
	must(c.t, c.createRole(&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}))
	must(c.t, c.createRole(&rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: account}},
	}))
}

// follow is the right to list and watch.
func follow(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
}

// may asks the API server what a service account in kube-system may do.
func (c *cluster) may(account, verb, group, resource string) bool {
	c.t.Helper()
	r, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(c.ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:kube-system:" + account,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: "default", Verb: verb, Group: group, Resource: resource,
			},
		},
	}, metav1.CreateOptions{})
	must(c.t, err)
	return r.Status.Allowed
}

// deploy/kubernetes/rbac/rbac.yaml gives what nkp needs, and no more than kube-proxy has.
func TestRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{})
	for _, r := range []struct {
		group, resource string
		verbs           []string
	}{
		{"", "services", []string{"list", "watch"}},
		{"", "nodes", []string{"list", "watch"}},
		{"discovery.k8s.io", "endpointslices", []string{"list", "watch"}},
		{"networking.k8s.io", "servicecidrs", []string{"list", "watch"}},
		{"events.k8s.io", "events", []string{"create", "patch", "update"}},
		{"", "events", []string{"create", "patch", "update"}},
	} {
		for _, verb := range r.verbs {
			if !c.may(nkpAccount, verb, r.group, r.resource) {
				t.Errorf("nkp may not %s %s.%s", verb, r.resource, r.group)
			}
		}
	}
	for _, r := range [][3]string{
		{"update", "", "services"}, {"patch", "", "services/status"}, {"patch", "", "nodes"}, {"delete", "discovery.k8s.io", "endpointslices"},
		{"list", "", "secrets"}, {"list", "", "pods"}, {"list", "", "configmaps"}, {"create", "networking.k8s.io", "servicecidrs"},
	} {
		if c.may(nkpAccount, r[0], r[1], r[2]) {
			t.Errorf("nkp may %s %s.%s, which it does not need", r[0], r[2], r[1])
		}
	}
}

// A right that is missing is named, and Services are served as far as that goes; once it is granted, nkp goes on by itself.
func TestRightsMissing(t *testing.T) {
	t.Parallel()
	const account = "poor"
	c := newCluster(t, layout{})
	pods, err := c.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	client, web := pods[0], pods[1]
	c.createPod(web, "web")
	c.createService("web", "web", 10)
	c.eventually("web has endpoints", func() error { return c.hasSlices("web") })

	token := c.createAccount(account, follow("", "services", "nodes"))
	c.writeKubeconfig(netip.MustParseAddrPort(serverAddr), token)
	c.startAgent()
	c.eventually("status says that EndpointSlices are missing", func() error {
		return has(c.status(), "NOT synced yet", "ERROR", "cannot list EndpointSlices: ", "forbidden")
	})
	flows, err := c.Ofctl("dump-flows", c.Bridge)
	must(t, err)
	must(t, hasNot(flows, "nw_dst=40.0.0.10")) // nothing is programmed on half of the facts

	c.allow(account, account+"-slices", follow("discovery.k8s.io", "endpointslices"))
	c.eventually("web is served", func() error { return c.answers(client.Host, web4, web) })
	c.eventually("status says that ServiceCIDRs are missing", func() error {
		return has(c.status(), serverURL+": synced", "WARNING", "cannot list ServiceCIDRs: ", "forbidden")
	})
	must(t, has(c.agent.Log.String(), "cannot list ServiceCIDRs: ", "cannot write Events", "events.events.k8s.io is forbidden"))
	must(t, hasNot(c.status(), "ERROR"))
	if out, _ := c.Ofctl("dump-flows", c.Bridge); has(out, "nw_dst=40.0.0.0/16") == nil {
		t.Error("a Service range that nobody told is dropped")
	}

	c.allow(account, account+"-cidrs", follow("networking.k8s.io", "servicecidrs"))
	c.eventually("the Service range is known", func() error {
		out, err := c.Ofctl("dump-flows", c.Bridge)
		if err != nil {
			return err
		}
		return has(out, "nw_dst=40.0.0.0/16")
	})
	c.eventually("nothing is missing any more", func() error { return hasNot(c.status(), "cannot", "ERROR", "forbidden") })
	must(t, c.answers(client.Host, web4, web))
}

// hasSlices fails while a Service has no endpoints.
func (c *cluster) hasSlices(service string) error {
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if len(s.Endpoints) > 0 {
			return nil
		}
	}
	return fmt.Errorf("Service %s has no endpoints", service)
}
