package pipeline

import (
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Reasons do not depend on where nkp's tables begin.
func TestDropReasonOfMovedTables(t *testing.T) {
	l := DefaultLayout()
	l.TableBase += 40
	if got := l.DropReason(l.table(tableServices), prioFrontend+refuses); got != k8s.DropNoEndpoint {
		t.Errorf("%q, want %q", got, k8s.DropNoEndpoint)
	}
}
