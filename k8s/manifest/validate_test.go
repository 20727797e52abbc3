package manifest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAffinityTimeout checks the limits that the API sets: 1 s to a day.
func TestAffinityTimeout(t *testing.T) {
	service := func(config *v1.SessionAffinityConfig) *v1.Service {
		return &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", SessionAffinity: v1.ServiceAffinityClientIP, SessionAffinityConfig: config,
				Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
		}
	}
	for seconds, good := range map[int32]bool{-1: false, 0: false, 1: true, 86400: true, 86401: false} {
		errs := validate(service(&v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}))
		if (len(errs) == 0) != good {
			t.Errorf("%d s: %v", seconds, errs)
		}
	}
	for name, config := range map[string]*v1.SessionAffinityConfig{"none": nil, "empty": {}, "without a timeout": {ClientIP: &v1.ClientIPConfig{}}} {
		if errs := validate(service(config)); len(errs) > 0 {
			t.Errorf("configuration %s: %v", name, errs)
		}
	}
	seconds := int32(0)
	s := service(&v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}})
	s.Spec.SessionAffinity = v1.ServiceAffinityNone
	if errs := validate(s); len(errs) > 0 {
		t.Errorf("without affinity: %v", errs)
	}
	s.Spec.SessionAffinity = "Cookie"
	if errs := validate(s); len(errs) != 1 || errs[0].Field != "spec.sessionAffinity" {
		t.Errorf("affinity Cookie: %v", errs)
	}
}
