package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Hooks are called when something happens. Each may be nil.
type Hooks struct {
	dataplane.Hooks
	Transaction func(dataplane.Transaction) // a transaction with the switch is over
}

// Plane keeps one bridge in step with the model. Make it with New, run it once with Run; the other methods may be called
// from any goroutine while it runs.
type Plane struct {
	set      Settings
	hooks    Hooks
	log      *slog.Logger
	openflow string // where the switch is, for status

	in    *dataplane.Inbox
	db    *ovsdb.Client
	of    *ofctrl.Client
	conns chan *ofctrl.Conn // new connections, handed to the loop
	drift dataplane.Bell    // another controller changed groups or meters
	asks  chan func()       // questions, answered on the loop

	life       *dataplane.Loop // of loop
	unanswered atomic.Bool     // the switch left a question without an answer, and has not been read back since
	rejects    rejectCounters
	figures    atomic.Pointer[Figures]
	counted    counterCache

	// What follows belongs to the loop alone.
	facts    k8s.Model                         // what the model says beside Services
	compiler *pipeline.Compiler                // nil until the first Update
	warnings []string                          // about the configuration
	conn     *ofctrl.Conn                      // nil while there is none
	gap      *flow.Delta                       // what the switch lacks; nil until it was read back, empty nearly always
	surplus  map[flow.Key]*flow.Flow           // flows that should not be there, beyond what gap deletes
	flows    int                               // on the switch, or flowsUnknown; once it was read back
	gateway  flow.MAC                          // last known
	looks    int                               // for it at the start
	noMeter  bool                              // the switch refused the meter
	whole    bool                              // what is sent now follows a read-back
	behind   bool                              // the switch lacks something of Service ports that do not wait
	refused  *dataplane.Refusals[k8s.PortName] // by the switch; the zero PortName stands for what belongs to no Service
	pins     pins
	unread   map[uint8]int // tables with too many flows of others to look for conflicts, and how many
	routes   hostRoutes
	stats    statistics
	forgets  forgetting
}

// New returns a Plane for the switch that db watches.
func New(set Settings, db *ovsdb.Client, hooks Hooks, log *slog.Logger) *Plane {
	hooks.Hooks = hooks.WithDefaults()
	if hooks.Transaction == nil {
		hooks.Transaction = func(dataplane.Transaction) {}
	}
	return &Plane{
		set: set, hooks: hooks, log: log, db: db, life: dataplane.NewLoop("bridge"),
		in:      dataplane.NewInbox(hooks.Queued),
		conns:   make(chan *ofctrl.Conn),
		drift:   dataplane.NewBell(),
		asks:    make(chan func()),
		counted: counterCache{asks: make(chan struct{}, 1)},
		refused: dataplane.NewRefusals[k8s.PortName](),
		surplus: map[flow.Key]*flow.Flow{},
	}
}

// Loops returns the signs of life of the plane's goroutines.
func (p *Plane) Loops() []*dataplane.Loop { return []*dataplane.Loop{p.life} }

// work, answered and rest note the loop's progress. After a question without an answer there is none until the switch has
// been read back again: a plane that does nothing but connect anew and ask in vain is stuck, too.
func (p *Plane) work(doing string) {
	if !p.unanswered.Load() {
		p.life.Work(doing)
	}
}

func (p *Plane) answered() {
	if !p.unanswered.Load() {
		p.life.Progress()
	}
}

func (p *Plane) rest() {
	if !p.unanswered.Load() {
		p.life.Rest()
	}
}

// lost notes why the connection was given up. It is called while the loop works.
func (p *Plane) lost(err error) {
	if errors.Is(err, ofctrl.ErrNoAnswer) {
		p.unanswered.Store(true)
	}
}

// Update hands over what is new in the model; the first call must bring all of it. It never waits. The model itself is
// not kept.
func (p *Plane) Update(m *k8s.Model, c k8s.Changes) { p.in.Put(m, c) }

// Run works until the context ends, and returns nil then; flows stay on the switch. Any other return is an error
// that no retry can mend.
func (p *Plane) Run(ctx context.Context) error {
	text, err := p.set.OpenFlowTarget()
	if err != nil {
		return err
	}
	p.openflow = text
	target, err := ofctrl.ParseTarget(text)
	if err != nil {
		return err
	}
	p.of = ofctrl.NewClient(target, ofctrl.ClientOptions{
		Options: ofctrl.Options{
			Bridge:     p.set.Bridge,
			TLS:        p.set.TLS,
			Log:        p.log,
			OnPacketIn: p.packetIn,
			OnAnswer:   p.answered,
			OnForward:  func(ofctrl.Forward) { p.drift.Ring() },
		},
		OnConnect: func(ctx context.Context, c *ofctrl.Conn) error {
			select {
			case p.conns <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.of.Run(ctx) })
	g.Go(func() error { return p.loop(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// loop owns the plane's state. It ends with the context.
func (p *Plane) loop(ctx context.Context) error {
	audit := time.NewTicker(p.set.AuditPeriod)
	defer audit.Stop()
	count := time.NewTicker(p.set.CountPeriod)
	defer count.Stop()
	defer p.life.Rest()
	for {
		if p.conn != nil && p.gap != nil && !p.behind {
			p.in.WhileIdle(func() { p.hooks.InStep(dataplane.Families...) })
		}
		p.publish()
		var gone <-chan struct{}
		if p.conn != nil {
			gone = p.conn.Done()
		}
		var retry <-chan time.Time
		if t := p.refused.Next(); !t.IsZero() && p.conn != nil {
			retry = time.After(max(0, time.Until(t)))
		}
		var look <-chan time.Time
		if p.looks < gatewayLooks && p.gap != nil && p.wantsGateway() && p.gateway.IsZero() {
			look = time.After(time.Duration(p.looks) * gatewayPause)
		}
		var forget <-chan time.Time
		if t, ok := p.forgets.next(); ok && p.conn != nil && p.gap != nil {
			forget = time.After(max(0, time.Until(t)))
		}
		var surplus <-chan time.Time
		if len(p.surplus) > 0 {
			surplus = time.After(0)
		}
		p.rest()
		select {
		case <-ctx.Done():
			return nil
		case <-forget:
			p.work("forgetting stale UDP connections")
			p.forget(ctx)
		case <-surplus:
			p.work("deleting flows that should not be there")
			p.deleteSurplus(ctx)
		case <-look:
			p.work("looking for the router's MAC")
			p.looks++
			p.checkGateway(ctx)
		case <-p.in.Bell:
			p.work("programming changes")
			if err := p.takeUpdate(ctx); err != nil {
				return err
			}
		case <-p.db.Changed():
			p.work("taking up changes of the switch's database")
			p.reconfigure(ctx)
		case p.conn = <-p.conns:
			p.work("bringing the switch in step after connecting")
			p.stats.Connections++
			p.log.Info("connected to the switch", "bridge", p.set.Bridge)
			p.watchOthers(ctx)
			p.meterFirst(ctx)
			p.probeForget(ctx)
			p.checkPins(ctx)
			p.readBack(ctx)
		case <-gone:
			p.work("connecting anew")
			p.log.Warn("connection to the switch lost; what is installed stays", "error", p.conn.Err())
			p.lost(p.conn.Err())
			p.disconnected()
		case <-p.drift:
			p.work("reading the switch back after another controller's change")
			p.stats.Drifts++
			p.readBack(ctx)
		case <-count.C:
			p.work("counting flows")
			p.checkGateway(ctx)
			p.checkRoutes()
			p.checkPins(ctx)
			p.checkCount(ctx)
		case <-audit.C:
			p.work("reading the switch back")
			if time.Now().After(p.forgets.audited) {
				p.forgets.owed.add(true, nil)
			}
			p.readBack(ctx)
		case <-retry:
			p.work("trying refused Services again")
			p.sync(ctx)
		case f := <-p.asks:
			p.work("answering a question")
			f()
		}
	}
}

// takeUpdate brings the switch in step with what is new in the model.
func (p *Plane) takeUpdate(ctx context.Context) error {
	u := p.in.Take()
	if u == nil {
		return nil
	}
	p.facts = u.Facts
	if p.compiler == nil {
		c, err := pipeline.NewCompiler(p.config())
		if err != nil {
			return err
		}
		p.compiler = c
		p.compiler.Load(u.Ports)
		p.log.Info("compiled", "services", len(u.Ports), "flows", c.Flows(), "groups", c.Groups())
		p.readBack(ctx)
		p.checkRoutes()
		return nil
	}
	if u.Node {
		p.reconfigure(ctx)
	}
	for n := range u.Ports {
		if p.refused.Has(n) { // a changed Service port is tried at once, and all of it: what it lacks is more than the change
			p.refused.Forget(n)
			p.behind = true
		}
	}
	d := p.compiler.Update(u.Ports)
	p.push(ctx, d)
	if !d.Empty() && p.inForce(u.Ports) {
		p.stats.programmed(time.Since(u.Arrived))
	}
	return nil
}

// inForce tells whether the switch has all it should have of these Service ports.
func (p *Plane) inForce(ports map[k8s.PortName]*k8s.ServicePort) bool {
	if p.conn == nil || p.gap == nil || p.behind {
		return false
	}
	for n := range ports {
		if p.refused.Has(n) {
			return false
		}
	}
	return true
}

// reconfigure takes up what is new about node and switch.
func (p *Plane) reconfigure(ctx context.Context) {
	if p.compiler == nil || !p.db.Switch().Exists {
		return // without a bridge nothing is known of it; what was known is right for its return until more is said
	}
	cfg := p.config()
	d, err := p.compiler.Reconfigure(cfg)
	if err != nil {
		p.log.Error("cannot take up the node's new configuration", "error", err)
		return
	}
	p.push(ctx, d)
	p.checkRoutes()
}

// The router is asked for once the bridge lets the question through: at once then, since the kernel would repeat a lost one
// only after a second. How often nkp looks at first whether it has answered, and how the pauses grow; later it looks every
// CountPeriod.
const (
	gatewayLooks = 20
	gatewayPause = 10 * time.Millisecond
)

// wantsGateway tells whether the router's MAC is to be found out.
func (p *Plane) wantsGateway() bool {
	return p.compiler != nil && p.set.GatewayMAC.IsZero() && !p.compiler.Config().NodeMAC.IsZero()
}

// checkGateway takes up a router that the kernel has come to know, or that has changed.
func (p *Plane) checkGateway(ctx context.Context) {
	if !p.wantsGateway() {
		return
	}
	if m := gatewayMAC(p.set.Bridge, true); !m.IsZero() && m != p.gateway {
		p.reconfigure(ctx)
	}
}

// config puts together what is known of node and switch.
func (p *Plane) config() pipeline.Config {
	sw := p.db.Switch()
	cfg, warnings := p.set.PipelineConfig(&p.facts, &sw)
	if cfg.GatewayMAC.IsZero() {
		cfg.GatewayMAC = p.gateway // the kernel may forget a neighbour it does not talk to
	}
	p.gateway = cfg.GatewayMAC
	if p.noMeter {
		cfg.NoMeter = true
		warnings = append(warnings, "the switch has no meters: packets to be refused are bounded by nkp's queue alone")
	}
	for _, w := range warnings {
		if !slices.Contains(p.warnings, w) {
			p.log.Warn(w)
		}
	}
	p.warnings = warnings
	return cfg
}

// ask runs f on the loop and waits for it. What came in before is taken first.
func (p *Plane) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case p.asks <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("the data plane is busy: %w", ctx.Err())
	}
	<-done
	return nil
}

// Diff reads the switch back and compares it with what should be there; "" means equal. It changes nothing.
func (p *Plane) Diff(ctx context.Context) (text string, err error) {
	askErr := p.ask(ctx, func() {
		if err = p.takeUpdate(ctx); err == nil {
			text, err = p.diff(ctx)
		}
	})
	return text, errors.Join(askErr, err)
}

func (p *Plane) diff(ctx context.Context) (string, error) {
	switch {
	case p.compiler == nil:
		return "", errors.New("the agent's source has not synced yet")
	case p.conn == nil:
		return "", p.notConnected()
	}
	n, err := p.strangers(ctx)
	switch {
	case err != nil:
		return "", err
	case n > maxStrangers:
		return "", fmt.Errorf("%s; they go at the next audit", tooManyText(n))
	}
	found := p.newComparison()
	if err := p.conn.Read(ctx, p.set.Filter(), found); err != nil {
		return "", err
	}
	return DiffText(found.Delta()), nil
}
