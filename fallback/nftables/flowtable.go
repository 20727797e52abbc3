//go:build linux

package nftables

import (
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// flowtableLook is how often the node's devices are compared with those of the flowtable. A new pod's
// connections take the usual path until then. The kernel itself removes devices that go.
const flowtableLook = 5 * time.Second

// flowtable keeps the devices of a table's flowtable in step with the node's.
type flowtable struct {
	lacking     error     // why the kernel has no flowtable; nil: it has
	lookAt      time.Time // when to look at the devices again
	lastWarning string    // the last error that was logged
}

// lacksFlowtable returns why the kernel cannot have the flowtable that is wanted; nil: it can, or none is.
// err is why that is not known.
func (o *Options) lacksFlowtable(conn *netlink.Conn, f k8s.Family) (lacking, err error) {
	if len(o.FlowtableDevices) == 0 || o.Scope == serving.Own {
		return nil, nil
	}
	err = conn.Probe(f, rules.FlowtableFeature())
	if lacks, is := errors.AsType[*netlink.LacksError](err); is {
		return lacks, nil
	}
	return nil, err
}

// config returns the settings of a table, without a flowtable where one is lacking.
func (o *Options) config(lacking error) rules.Config {
	c := rules.Config{Config: o.Config, Settings: o.Settings}
	if lacking != nil {
		c.FlowtableDevices = nil
	}
	return c
}

// keepDevices adds devices to the flowtable, and deletes those that no pattern matches. Services do not
// depend on it: it is a transaction of its own, and what the kernel refuses is tried again at the next look.
func (w *worker) keepDevices() error {
	now := time.Now()
	patterns := w.compiler.Devices()

	if w.flowtable.lacking != nil {
		w.reportDevices(0, 0, w.flowtable.lacking)
		return nil
	}
	if len(patterns) == 0 || now.Before(w.flowtable.lookAt) {
		return nil
	}

	w.flowtable.lookAt = now.Add(flowtableLook)
	names, err := deviceNames()
	if err != nil {
		w.reportDevices(0, 0, err)
		return nil
	}

	in, _, err := w.conn.Devices(w.Family)
	if errors.Is(err, netlink.ErrInterrupted) {
		return nil
	} else if err != nil {
		return err
	}

	want, left := rules.MatchDevices(patterns, names, in)
	if left > 0 {
		err = rules.ErrTooManyDevices
	}

	for {
		b := netlink.NewBatch(w.Family)
		wanted := func(d string) bool { return slices.Contains(want, d) }
		if gone := slices.DeleteFunc(slices.Clone(in), wanted); len(gone) > 0 {
			b.DeleteFlowtable(gone...)
		}
		for i, d := range want {
			if b.Tag(i); !slices.Contains(in, d) {
				b.AddFlowtable(d)
			}
		}
		if b.Empty() {
			break
		}

		problem := w.conn.Commit(b)
		refusal := new(netlink.RefusedError)
		if problem == nil {
			break
		} else if !errors.As(problem, &refusal) {
			return problem
		} else if why := refusal.Tags[netlink.NoTag]; why != nil { // a deletion
			if !isGone(why) {
				w.reportDevices(len(in), left, why)
			}
			return nil // the next look tries again
		}

		for _, i := range slices.Backward(slices.Sorted(maps.Keys(refusal.Tags))) {
			if !isGone(refusal.Tags[i]) {
				err, left = refusal.Tags[i], left+1
			}
			want = slices.Delete(want, i, i+1)
		}
	}

	w.reportDevices(len(want), left, err)
	return nil
}

// reportDevices reports what is in the flowtable, and logs a new problem once.
func (w *worker) reportDevices(in, left int, err error) {
	s := &fallback.Flowtable{Devices: in, LeftOut: left}
	if err != nil {
		s.Error = err.Error()
	}
	if s.Error != w.flowtable.lastWarning && s.Error != "" {
		w.Log.Warn("the flowtable does not have every device: connections of the others take the usual path",
			"devices", in, "leftOut", left, "error", err)
	}
	w.flowtable.lastWarning = s.Error
	w.Report(func(f *fallback.FamilyStatus) { f.Flowtable = s })
}

// deviceNames returns the names of the node's devices that forwarded packets may come from.
func deviceNames() (names []string, err error) {
	list, err := net.Interfaces()
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	return names, err
}
