package k8s

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// An annotation with nkp's prefix that nkp does not have is a warning, the first few of them; others are not.
func TestUnknownAnnotations(t *testing.T) {
	s := webService()
	s.Annotations = map[string]string{AnnotationWeights: "", "example.com/weights": "", "nkp-proxy.github.io/wieghts": "", "nkp-proxy.github.io/": ""}
	warnings := func(s *v1.Service) (list []string) {
		for _, w := range newServiceDef(s, Origin{}, &Options{}).warnings {
			list = append(list, w.String())
		}
		return list
	}
	got := warnings(s)
	if len(got) != 2 || !strings.Contains(got[1], "metadata.annotations[nkp-proxy.github.io/wieghts]: has no effect: nkp has no annotation of this name; those of Services are "+
		"nkp-proxy.github.io/weights, nkp-proxy.github.io/consistent") {
		t.Errorf("%q", got)
	}
	for i := range 100 {
		s.Annotations[fmt.Sprint(AnnotationPrefix, i)] = ""
	}
	if got := warnings(s); len(got) != MaxUnknownAnnotations {
		t.Errorf("%d warnings", len(got))
	}
}
