package apiserver

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/pager"

	"github.com/nkp-proxy/nkp/k8s"
)

// List lists once all objects that Run would follow. It returns one Upsert for each, sorted by Ref, and fails
// if the server does not answer every list.
func (s *Source) List(ctx context.Context) ([]k8s.Change, k8s.Problems, error) {
	defer utilnet.CloseIdleConnectionsFor(s.http.Transport)
	var changes []k8s.Change
	var p k8s.Problems
	for i := range s.resources {
		r := &s.resources[i]
		err := pager.New(r.list).EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			if object, ref, ok := apiObject(item); ok {
				changes = append(changes, k8s.Change{Op: k8s.Upsert, Ref: ref, Object: object})
			}
			return nil
		})
		if err != nil {
			return nil, k8s.Problems{}, fmt.Errorf("API server %s: %w", s.url, plainError(r.kind, err))
		}
		if left := &r.kept.left; left.number > 0 {
			p.Warnings = append(p.Warnings,
				k8s.Warning{Where: "API server " + s.url, Text: left.warning(r.kind)})
		}
	}
	slices.SortFunc(changes, k8s.Change.Compare)
	if !slices.ContainsFunc(changes, func(c k8s.Change) bool { return c.Ref.Kind == k8s.KindNode }) {
		p.Warnings = append(p.Warnings, s.health.noNodeWarning())
	}
	return changes, p, nil
}
