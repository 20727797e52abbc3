package k8s

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/pager"
)

// List asks the API server once for all objects that Run would follow: one Upsert for each, sorted by Ref. A server that
// does not answer, or not all, is an error.
func (s *APISource) List(ctx context.Context) ([]Change, Problems, error) {
	defer utilnet.CloseIdleConnectionsFor(s.http.Transport)
	var changes []Change
	for i := range s.resources {
		r := &s.resources[i]
		o := metav1.ListOptions{}
		r.selectIn(&o)
		err := pager.New(r.list).EachListItem(ctx, o, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err != nil {
				return err
			}
			if ref, ok := RefOf(item.(Object)); ok {
				changes = append(changes, Change{Op: Upsert, Ref: ref, Object: object})
			}
			return nil
		})
		if err != nil {
			return nil, Problems{}, fmt.Errorf("API server %s: %w", s.url, plainError(r.kind, err))
		}
	}
	sortChanges(changes)
	var p Problems
	if !slices.ContainsFunc(changes, func(c Change) bool { return c.Ref.Kind == KindNode }) {
		p.Warnings = append(p.Warnings, s.health.noNodeWarning())
	}
	return changes, p, nil
}
