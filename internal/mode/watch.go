package mode

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// How often a run looks whether nkp would choose otherwise now. Whether iptables drops traffic takes running
// its programs.
const (
	BridgePeriod = 10 * time.Second
	DropsPeriod  = time.Minute
)

// howToChange is the advice where another data plane would be chosen now.
const howToChange = "; restart nkp to change over (no connection is lost)"

// Watch looks whether nkp would choose other data planes than those at work. Changing over takes a restart.
type Watch struct {
	// Announce is called with each new reason, by the goroutine of Run, and the name of its kind.
	Announce func(event, text string)

	mu      sync.Mutex // protects reasons, which status reads
	reasons []string   // by Run, in the order of their first look; "": none
}

// OtherDataPlane is the kind of reasons why another data plane would be chosen now.
const OtherDataPlane = "OtherDataPlane"

// Run calls want every period until the context ends. want returns why another data plane would be chosen
// now, or what else of the kind event stands in the way, "" if nothing does; before is what it returned last.
func (w *Watch) Run(
	ctx context.Context, event string, period time.Duration,
	want func(ctx context.Context, before string) string,
) {
	w.mu.Lock()
	own := len(w.reasons)
	w.reasons = append(w.reasons, "")
	w.mu.Unlock()

	set := func(text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reasons[own] = text
	}
	defer set("") // nobody looks any more

	tick := time.NewTicker(period)
	defer tick.Stop()
	before := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text := want(ctx, before)
		if ctx.Err() != nil {
			return
		}

		set(text)
		if text != "" && text != before {
			w.Announce(event, text)
		}
		before = text
	}
}

// Reasons returns why other data planes would be chosen now.
func (w *Watch) Reasons() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.reasons), func(text string) bool { return text == "" })
}

// connectLimit bounds how long OtherThan looks for a bridge.
const connectLimit = 5 * time.Second

// OtherThan returns why nkp would choose a bridge now, or do without one, other than in mode m; "": it would
// not. db is the switch's database in mode OVS.
func (n *Node) OtherThan(ctx context.Context, m Mode, db *ovsdb.Client) string {
	if m == OVS {
		if sw := db.Switch(); !sw.Exists {
			return fmt.Sprintf("bridge %s is gone: nkp would serve Services by nftables or iptables now%s",
				n.Bridge, howToChange)
		}
		return ""
	}

	if _, installed := n.OVS(); m == Windows || !installed { // Windows has no other data plane
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	found, err := n.ConnectDatabase(ctx)
	if err != nil {
		return ""
	}
	found.Close()
	return fmt.Sprintf("bridge %s is here: nkp would serve Services in Open vSwitch now%s",
		n.Bridge, howToChange)
}

// Drops returns why iptables would be chosen now for what nftables serves; "": it would not. If that cannot
// be found out, what it returned before stands.
func (n *Node) Drops(ctx context.Context, before string) string {
	drops, err := iptables.Drops(ctx, n.IPTables)
	switch {
	case err != nil:
		return before
	case drops == "":
		return ""
	case n.IPTables.Scope == serving.Everything:
		return drops + "; nkp would serve Services by iptables now, which accepts them there" + howToChange
	}
	return drops + "; nkp would serve the node's own traffic by iptables now, which accepts it there" +
		howToChange
}
