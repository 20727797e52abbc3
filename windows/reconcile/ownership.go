package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nkp-proxy/nkp/windows/access"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// Ownership records which objects of HNS are nkp's. The state file keeps it across restarts.
type Ownership struct {
	Endpoints     map[string]bool // ids
	LoadBalancers map[string]bool // ids
	// PendingEndpoints (addresses) and PendingLoadBalancers (frontends) are about to be created. They are
	// recorded first, so that nkp recognizes them as its own if the agent dies before HNS returns the id.
	PendingEndpoints     map[string]bool
	PendingLoadBalancers map[string]bool
	// Altered holds the objects that HNS stores differently than requested, by id.
	Altered map[string]Alteration
}

// Alteration describes an object that HNS stores differently than requested. HNS may normalize a request: nkp
// accepts the object as long as it wants the same and HNS stores the same. Both are digests.
type Alteration struct {
	Asked  string `json:"asked"`
	Stored string `json:"stored"` // HNS's answer to the request
}

// digester is an object of HNS.
type digester interface{ Digest() string }

func newOwnership() *Ownership {
	return &Ownership{
		Endpoints:            map[string]bool{},
		LoadBalancers:        map[string]bool{},
		PendingEndpoints:     map[string]bool{},
		PendingLoadBalancers: map[string]bool{},
		Altered:              map[string]Alteration{},
	}
}

// answered records how HNS stores what it was asked for. It reports whether that differs.
func (o *Ownership) answered(id string, asked, stored digester) (differs bool) {
	a := Alteration{asked.Digest(), stored.Digest()}
	if a.Asked == a.Stored {
		delete(o.Altered, id)
		return false
	}
	o.Altered[id] = a
	return true
}

// accepts reports whether an object is what HNS has made of this request.
func (o *Ownership) accepts(id string, asked, stored digester) bool {
	a, ok := o.Altered[id]
	return ok && a == Alteration{asked.Digest(), stored.Digest()}
}

// identify records the ids of pending objects that HNS has created, and clears the pending ones.
func (o *Ownership) identify(have *observed) {
	for id, l := range have.loadBalancers {
		if fs := plan.FrontendsOf(l); len(fs) == 1 && o.PendingLoadBalancers[fs[0].String()] {
			o.LoadBalancers[id] = true
		}
	}
	for id, e := range have.endpoints {
		if a := e.Addrs(); len(a) == 1 && o.PendingEndpoints[a[0].String()] && (e.Remote() || e.Name == "") {
			o.Endpoints[id] = true
		}
	}
	clear(o.PendingLoadBalancers)
	clear(o.PendingEndpoints)
}

// pending reports whether something was about to be created when the file was written last.
func (o *Ownership) pending() bool { return len(o.PendingEndpoints)+len(o.PendingLoadBalancers) > 0 }

// StateFile is where ownership is kept. The zero StateFile ("") keeps nothing.
type StateFile string

type stateText struct {
	Version              int                   `json:"version"`
	Endpoints            []string              `json:"endpoints"`
	LoadBalancers        []string              `json:"loadBalancers"`
	PendingEndpoints     []string              `json:"pendingEndpoints"`
	PendingLoadBalancers []string              `json:"pendingLoadBalancers"`
	Altered              map[string]Alteration `json:"altered,omitempty"`
}

const stateVersion = 1

// maxStateFile bounds the file, in bytes: about 60 for each object, 100 more for an altered one.
const maxStateFile = 64 << 20

// Load reads the file. If there is none, nothing is owned; if it cannot be used, nothing is owned and the
// error says why: objects with a frontend that is wanted are adopted all the same. On Windows, a file that
// other users may change is not used.
func (f StateFile) Load() (*Ownership, error) {
	o := newOwnership()
	if f == "" {
		return o, nil
	}

	err := access.CheckFile(string(f))
	var data []byte
	if err == nil {
		data, err = readBounded(string(f))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return o, err
	}

	var t stateText
	if err := json.Unmarshal(data, &t); err != nil {
		return o, fmt.Errorf("state file %s: %w", f, err)
	}
	if t.Version != stateVersion {
		return o, fmt.Errorf("state file %s: version %d is not %d, the one this nkp knows",
			f, t.Version, stateVersion)
	}

	o.Endpoints, o.LoadBalancers = set(t.Endpoints), set(t.LoadBalancers)
	o.PendingEndpoints, o.PendingLoadBalancers = set(t.PendingEndpoints), set(t.PendingLoadBalancers)
	if t.Altered != nil {
		o.Altered = t.Altered
	}
	return o, nil
}

// readBounded reads a state file of at most maxStateFile bytes.
func readBounded(file string) ([]byte, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxStateFile+1))
	if len(data) > maxStateFile {
		return nil, fmt.Errorf("state file %s: it is larger than %d MiB", file, maxStateFile>>20)
	}
	return data, err
}

// Save replaces the file atomically: after a crash there is the old one or the new one.
func (f StateFile) Save(o *Ownership) error {
	if f == "" {
		return nil
	}
	data, err := o.text()
	if err != nil {
		return err
	}
	if err := access.MakeDir(filepath.Dir(string(f))); err != nil {
		return err
	}
	tmp := string(f) + ".new"
	w, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Sync(), w.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, string(f))
}

// Remove removes the file.
func (f StateFile) Remove() error {
	if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (o *Ownership) text() ([]byte, error) {
	return json.MarshalIndent(stateText{stateVersion, list(o.Endpoints), list(o.LoadBalancers),
		list(o.PendingEndpoints), list(o.PendingLoadBalancers), o.Altered}, "", " ")
}

func set(l []string) map[string]bool {
	s := make(map[string]bool, len(l))
	for _, v := range l {
		s[v] = true
	}
	return s
}

func list(s map[string]bool) []string {
	return append([]string{}, slices.Sorted(maps.Keys(s))...)
}
