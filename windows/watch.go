package windows

import (
	"sync/atomic"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// watch has Run sync as soon as HNS reports that a network was created or deleted. Without that the next sync
// finds it, which is up to half a minute later.
type watch struct {
	signal dataplane.Signal
	active atomic.Bool // HNS notifies
	stop   func()      // nil: not registered
	off    bool        // this HNS has no notifications
	failed bool        // the log has the last error
}

// register registers with HNS unless that is done. HNS ends a registration when its service stops. The runner
// is locked.
func (p *Plane) register() {
	w := &p.watch
	if p.open() != nil || w.off || w.active.Load() {
		return
	}
	w.unregister()
	w.active.Store(true)
	stop, err := p.host.Watch(func(lost bool) {
		if lost {
			w.active.Store(false)
		}
		w.signal.Notify()
	})
	if err == nil {
		w.stop, w.failed = stop, false
		return
	}
	w.active.Store(false)
	w.off = hns.HasCode(err, hns.CodeNotImplemented)
	if !w.failed {
		p.opts.Log.Info("HNS does not notify of changes: they are found by the next regular check",
			"error", err, "period", p.opts.AuditPeriod)
	}
	w.failed = true
}

// unregister ends the registration.
func (w *watch) unregister() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	w.active.Store(false)
}
