package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
)

// slowPlane has what came to it in force after a while, and refuses a Service.
type slowPlane struct {
	dataplane.Plane
	begun   time.Time
	after   time.Duration // since begun
	refused k8s.ServiceName
	closing bool // connections to removed endpoints are never deleted
}

func (p *slowPlane) Behind(_ context.Context, by time.Time, closing bool) string {
	if p.closing && closing {
		return "connections to removed endpoints are still to be deleted"
	}
	if !by.Before(p.begun) && time.Since(p.begun) < p.after {
		return "not all changes are on the switch yet"
	}
	return ""
}

func (p *slowPlane) Status(context.Context) (dataplane.Status, error) {
	if p.refused == (k8s.ServiceName{}) {
		return dataplane.Status{}, nil
	}
	return dataplane.Status{Refusals: []dataplane.Refusal{{Port: k8s.PortName{ServiceName: p.refused}, Reason: "bad group"}}}, nil
}

// An answer comes once every plane has in force what came before the question, and not what comes later; or after inForceWait, with the
// reason. What this node does not have, leaves to others, or refuses is said.
func TestInForce(t *testing.T) {
	for _, x := range []struct {
		name, service string
		after         time.Duration // of the plane that is slow
		why           string
		final         bool
		took          time.Duration
	}{
		{"at once", "web", 0, "", false, 0},
		{"after a while", "web", time.Second, "", false, time.Second},
		{"not in time", "web", time.Minute, "not all changes are on the switch yet", false, inForceWait},
		{"beside one that closes", "web", 0, "", false, 0},
		{"one that closes", "closes", 0, "connections to removed endpoints are still to be deleted", false, inForceWait},
		{"refused", "bad", 0, "the switch refuses it: bad group", false, 0},
		{"left to another program", "left", 0, "--skip-services leaves it to another program", true, 0},
		{"too large", "large", 0, "is not served: it would take up to", true, 0},
		{"not here", "none", time.Minute, "the agent does not have the Service", false, 0},
		{"not in manifests", "none", 0, "follows manifests /etc/nkp, whose objects have no versions to compare", true, 0},
		{"of manifests", "unversioned", 0, "follows manifests /etc/nkp, whose objects have no versions to compare", true, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := k8s.ServiceName{Namespace: "default", Name: "bad"}
				a := &Agent{asks: make(chan func()), delivered: true, tracker: k8s.NewTracker(k8s.Options{
					SkipServices: []k8s.ServiceName{{Namespace: "default", Name: "left"}},
					Limits:       k8s.Limits{Service: 10}, Cost: func(z *k8s.Size) int { return 10 * z.Frontends },
				})}
				if strings.Contains(x.name, "manifests") {
					a.kind = "manifests /etc/nkp"
				}
				a.planes = planes{all: []plane{
					{&slowPlane{refused: bad}, kinds[mode.OVS]}, {&slowPlane{begun: time.Now(), after: x.after, closing: strings.Contains(x.name, "closes")}, kinds[mode.NFTables]},
				}}
				for name, version := range map[string]string{"web": "7", "bad": "7", "closes": "7", "left": "7", "large": "7", "unversioned": ""} {
					s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}, Spec: v1.ServiceSpec{ClusterIP: "40.0.0.1"}}
					if name == "large" {
						s.Spec.Ports, s.Spec.ExternalIPs = []v1.ServicePort{{Port: 80, Protocol: "TCP"}}, []string{"30.0.0.1", "30.0.0.2"}
					}
					if name == "closes" {
						s.Spec.Ports, s.Annotations = []v1.ServicePort{{Port: 80, Protocol: "TCP"}}, map[string]string{k8s.AnnotationRemovedEndpoints: "close"}
						s.Spec.ClusterIP = "40.0.0.9"
					}
					a.tracker.SetService(s, k8s.Origin{})
				}
				a.tracker.Flush()
				go func() { // the loop
					for f := range a.asks {
						f()
					}
				}()
				defer close(a.asks)

				begun := time.Now()
				s, err := a.inForce(t.Context(), k8s.ServiceName{Namespace: "default", Name: x.service})
				must(t, err)
				if took := time.Since(begun); !strings.HasPrefix(s.Why, x.why) || (s.Why == "") != (x.why == "") || s.Final != x.final || took != x.took {
					t.Errorf("%q, final %t, after %v; want %q, %t, after %v", s.Why, s.Final, took, x.why, x.final, x.took)
				}
				if x.service != "none" && x.service != "unversioned" && s.Service != "7" {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
