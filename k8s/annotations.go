package k8s

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AnnotationPrefix begins the names of nkp's annotations.
const AnnotationPrefix = "nkp-proxy.github.io/"

// OwnAnnotations are those of Services that nkp alone reads. It is never written to.
var OwnAnnotations = []string{AnnotationWeights, AnnotationConsistent, AnnotationRemovedEndpoints}

// MaxUnknownAnnotations bounds how many annotations of an object with AnnotationPrefix a source keeps that
// nkp does not read.
const MaxUnknownAnnotations = 8

// UnknownAnnotations returns the names that have AnnotationPrefix, and that nkp does not read: the first
// MaxUnknownAnnotations, sorted.
func UnknownAnnotations(annotations map[string]string) []string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(annotations)), func(name string) bool {
		return !strings.HasPrefix(name, AnnotationPrefix) || slices.Contains(OwnAnnotations, name)
	})
	return names[:min(len(names), MaxUnknownAnnotations)]
}

// checkAnnotations warns about annotations that look like nkp's, and are not.
func (d *serviceDef) checkAnnotations(o *v1.Service) {
	for _, name := range UnknownAnnotations(o.Annotations) {
		d.warn(field.NewPath("metadata", "annotations").Key(name),
			"has no effect: nkp has no annotation of this name; those of Services are %s",
			strings.Join(OwnAnnotations, ", "))
	}
}
