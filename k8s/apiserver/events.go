package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/nkp-proxy/nkp/k8s"
)

// The types of Kubernetes Events.
const (
	EventNormal  = v1.EventTypeNormal
	EventWarning = v1.EventTypeWarning
)

const (
	eventQueue = 1000            // queued Events; more are dropped, as in client-go
	eventFlush = 3 * time.Second // for queued Events when Run ends
)

// Recorder writes Kubernetes Events (events.k8s.io/v1) about Services and about this node, so that kubectl
// describe and kubectl get events show what nkp found. It needs what the role system:node-proxier has: to
// create and patch Events, and to list Services.
//
// Recording never blocks and never fails: Events go through a bounded queue to Run, which sends them one by
// one at the client's own rate. client-go's EventCorrelator turns repeated Events into a series, aggregates
// similar ones, and allows an object 25 at once and then one in five minutes. client-go's own broadcasters
// are not used: they start a goroutine for every Event, and a process that ends cannot wait for them,
// although an Event then matters.
//
// Its methods may be called from any goroutine, but Run only once.
type Recorder struct {
	node    string
	log     *slog.Logger
	http    *http.Client
	client  kubernetes.Interface // nil: Events are only logged
	queue   chan event
	dropped atomic.Uint64

	// Used by Run only.
	correlator *record.EventCorrelator
	uids       *cache.LRUExpireCache // types.UID of a Service by its k8s.ServiceName
	// exists has, by the name of an Event that the server has, how often this node has counted it (int32); 0:
	// another node wrote it.
	exists    *cache.LRUExpireCache
	lastError string
	retry     time.Duration // pause before the first retry
}

// event is an Event to write about a Service, or about the node if the name is empty.
type event struct {
	service                   k8s.ServiceName
	typ, reason, action, note string
	at                        time.Time

	known *v1.Event // after correlation; nil: not yet
}

// NewRecorder prepares a Recorder for the API server of opts. It has its own client, so that Events do not
// use up the Source's rate limit. It does not connect.
func NewRecorder(opts Options, log *slog.Logger) (*Recorder, error) {
	cfg, _, err := restConfig(opts)
	if err != nil {
		return nil, err
	}
	cfg.Wrap(new(transport).wrap)
	hc, client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	r := NewLogRecorder(opts.NodeName, log)
	r.http, r.client = hc, client
	return r, nil
}

// NewLogRecorder returns a Recorder that only logs Events, for use without an API server.
func NewLogRecorder(nodeName string, log *slog.Logger) *Recorder {
	return &Recorder{
		node:       nodeName,
		log:        log,
		queue:      make(chan event, eventQueue),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		uids:       cache.NewLRUExpireCache(maxUIDs),
		exists:     cache.NewLRUExpireCache(maxExisting),
		retry:      time.Second,
	}
}

// Service records something about a Service: what (reason, such as FailedToStartServiceHealthcheck), what was
// being done (action, such as Listen), and a sentence.
func (r *Recorder) Service(name k8s.ServiceName, eventType, reason, action, note string) {
	r.record(event{service: name, typ: eventType, reason: reason, action: action, note: note, at: time.Now()})
}

// Node records something about this node.
func (r *Recorder) Node(eventType, reason, action, note string) {
	r.record(event{typ: eventType, reason: reason, action: action, note: note, at: time.Now()})
}

func (r *Recorder) record(e event) {
	if r.client == nil {
		r.log.Info("event", "regarding", e.regarding(r.node), "type", e.typ,
			"reason", e.reason, "action", e.action, "note", e.note)
		return
	}
	select {
	case r.queue <- e:
	default:
		if r.dropped.Add(1) == 1 {
			r.log.Warn("too many Events wait for the API server: new ones are dropped", "waiting", eventQueue)
		}
	}
}

func (e *event) regarding(node string) k8s.Ref {
	if e.service == (k8s.ServiceName{}) {
		return k8s.Ref{Kind: k8s.KindNode, Name: node}
	}
	return k8s.Ref{Kind: k8s.KindService, Namespace: e.service.Namespace, Name: e.service.Name}
}

// Dropped returns the number of Events dropped because the queue was full.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Run sends Events until the context ends. It then sends queued Events for at most eventFlush and returns
// nil.
func (r *Recorder) Run(ctx context.Context) error {
	if r.client == nil {
		return nil
	}
	defer utilnet.CloseIdleConnectionsFor(r.http.Transport)

	// Requests outlive the context by the time for the flush.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(eventFlush, cancel) })()

	for {
		select {
		case e := <-r.queue:
			r.send(ctx, requests, e)
			continue
		case <-ctx.Done():
		}

		for requests.Err() == nil {
			select {
			case e := <-r.queue:
				r.send(ctx, requests, e)
			default:
				return nil
			}
		}
		return nil
	}
}
