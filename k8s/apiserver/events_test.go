package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/apifake"
	"github.com/nkp-proxy/nkp/test/wait"
)

// eventAPI is an API server for Events, with one Service, default/web.
type eventAPI struct {
	*httptest.Server

	mu     sync.Mutex // protects all below
	events map[string]*eventsv1.Event
	order  []string // names as created
	asked  []string // "POST /apis/...", without queries
	status int      // answered instead; 0: none
	block  chan struct{}
	lost   int // Events that are created, while the answer says that the server is unavailable
}

func newEventAPI(t *testing.T) *eventAPI {
	f := &eventAPI{events: map[string]*eventsv1.Event{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *eventAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	status, block := f.status, f.block
	f.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-r.Context().Done():
			return
		}
	}
	if status != 0 {
		reason := metav1.StatusReason(http.StatusText(status))
		apifake.Answer(w, status, apifake.Status(int32(status), reason, "fake says so"))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	const events = "/apis/events.k8s.io/v1/namespaces/default/events"
	switch name := strings.TrimPrefix(r.URL.Path, events); {
	case r.Method == "POST" && name == "":
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		e, ok := o.(*eventsv1.Event)
		if err != nil || !ok {
			apifake.Answer(w, 400, apifake.Status(400, "BadRequest", fmt.Sprint(err)))
			return
		}
		if f.events[e.Name] != nil {
			apifake.Answer(w, 409, apifake.Status(409, metav1.StatusReasonAlreadyExists, "there is such an Event"))
			return
		}
		f.events[e.Name] = e
		f.order = append(f.order, e.Name)
		if f.lost--; f.lost >= 0 {
			apifake.Answer(w, 503, apifake.Status(503, metav1.StatusReasonServiceUnavailable, "starting"))
			return
		}
		apifake.Answer(w, 201, withKind(e))
	case r.Method == "PATCH" && name != "":
		e := f.events[name[1:]]
		if e == nil {
			apifake.Answer(w, 404, apifake.Status(404, metav1.StatusReasonNotFound, "no such Event"))
			return
		}
		if err := json.Unmarshal(body, e); err != nil {
			panic(err)
		}
		apifake.Answer(w, 200, withKind(e))
	case r.Method == "GET" && r.URL.Path == "/api/v1/namespaces/default/services":
		list := v1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, Items: []v1.Service{}}
		if r.URL.Query().Get("fieldSelector") == "metadata.name=web" && r.URL.Query().Get("resourceVersion") == "0" {
			list.Items = append(list.Items, v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-of-web"}})
		}
		apifake.Answer(w, 200, list)
	default:
		apifake.Answer(w, 404, apifake.Status(404, metav1.StatusReasonNotFound, "no such path"))
	}
}

func withKind(e *eventsv1.Event) *eventsv1.Event {
	c := *e
	c.TypeMeta = metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}
	return &c
}

// written returns the Events in the order in which they were created.
func (f *eventAPI) written() (list []eventsv1.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.order {
		list = append(list, *f.events[n].DeepCopy())
	}
	return list
}

func (f *eventAPI) set(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

// count returns how often something was asked.
func (f *eventAPI) count(request string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.asked {
		if strings.HasPrefix(a, request) {
			n++
		}
	}
	return n
}

// recorder makes a Recorder for the fake, and runs it until stop is called.
func (f *eventAPI) recorder(t *testing.T) (r *Recorder, log *lockedBuffer, stop func()) {
	t.Helper()
	return f.recorderOf(t, "node-1")
}

func (f *eventAPI) recorderOf(t *testing.T, node string) (r *Recorder, log *lockedBuffer, stop func()) {
	t.Helper()
	log = &lockedBuffer{}
	r, err := NewRecorder(Options{Master: f.URL, NodeName: node, QPS: 1000, Burst: 1000}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.retry = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, log, stop
}

type lockedBuffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// An Event names the Service with its UID, by which kubectl describe finds it, and the node as the kubelet does; what
// was recorded just before the end is written.
func TestRecorder(t *testing.T) {
	f := newEventAPI(t)
	r, log, stop := f.recorder(t)
	before := time.Now().Truncate(time.Microsecond)
	r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "FailedToStartServiceHealthcheck", "Listen", "port 31000: in use")
	r.Node(EventNormal, "Starting", "StartNkp", "")
	r.Service(k8s.ServiceName{Namespace: "default", Name: "gone"}, EventWarning, "PortTaken", "Program", strings.Repeat("é", 1000))
	stop()
	got := f.written()
	if len(got) != 3 {
		t.Fatalf("%d Events: %+v; log:\n%s", len(got), got, log)
	}
	for i, want := range []eventsv1.Event{
		{Type: "Warning", Reason: "FailedToStartServiceHealthcheck", Action: "Listen", Note: "port 31000: in use",
			Regarding: v1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: "web", UID: "uid-of-web"}},
		{Type: "Normal", Reason: "Starting", Action: "StartNkp",
			Regarding: v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "node-1"}},
		{Type: "Warning", Reason: "PortTaken", Action: "Program", Note: strings.Repeat("é", 512),
			Regarding: v1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: "gone"}},
	} {
		g := got[i]
		if g.Type != want.Type || g.Reason != want.Reason || g.Action != want.Action || g.Note != want.Note || g.Regarding != want.Regarding {
			t.Errorf("Event %d is\n%+v, want\n%+v", i, g, want)
		}
		if g.ReportingController != "nkp" || g.ReportingInstance != "nkp-node-1" || g.Series != nil || g.Namespace != "default" {
			t.Errorf("Event %d: %+v", i, g)
		}
		if g.EventTime.Time.Before(before) || g.EventTime.After(time.Now()) {
			t.Errorf("Event %d has the time %v, want %v or a little later", i, g.EventTime, before)
		}
	}
}

// The same again is one Event with a count; an Event that the server has forgotten is recreated; the Service is looked
// up once.
func TestRecorderSeries(t *testing.T) {
	f := newEventAPI(t)
	r, _, stop := f.recorder(t)
	before := time.Now().Truncate(time.Microsecond)
	say := func() {
		r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "PortTaken", "Program", "by nginx")
	}
	for range 5 {
		say()
	}
	wait.For(t, "five of them", func() bool { e := f.written(); return len(e) == 1 && e[0].Series != nil && e[0].Series.Count == 5 })
	if s := f.written()[0].Series; s.LastObservedTime.Time.Before(before) {
		t.Errorf("series %+v", s)
	}
	f.mu.Lock()
	clear(f.events)
	f.order = nil
	f.mu.Unlock()
	say()
	wait.For(t, "the Event again", func() bool { return len(f.written()) == 1 })
	stop()
	if e := f.written(); len(e) != 1 || e[0].Series == nil || e[0].Series.Count != 6 {
		t.Errorf("after the server forgot: %+v", e)
	}
	if n := f.count("GET"); n != 1 {
		t.Errorf("%d lookups of one Service", n)
	}
}

// A series never counts backwards, whichever of the notes that are one Event is said again; and a node continues an Event of its own
// whose creation the server did not answer.
func TestRecorderCounts(t *testing.T) {
	f := newEventAPI(t)
	r, _, stop := f.recorder(t)
	count := func() (n int32) {
		if e := f.written(); len(e) == 1 && e[0].Series != nil {
			n = e[0].Series.Count
		}
		return n
	}
	say := func(note string) {
		r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "PortTaken", "Program", note)
	}
	for range 5 {
		say("by nginx")
	}
	wait.For(t, "five of one note", func() bool { return count() == 5 })
	say("by haproxy")
	say("by haproxy")
	wait.For(t, "one more", func() bool { return count() > 5 || f.count("PATCH") == 5 })
	if count() != 6 {
		t.Errorf("the series counts %d after another note was repeated, want 6", count())
	}
	stop()

	f = newEventAPI(t)
	r, _, stop = f.recorder(t)
	f.mu.Lock()
	f.lost = 1
	f.mu.Unlock()
	r.Node(EventWarning, "OtherDataPlane", "Serve", "bridge br-int is gone")
	wait.For(t, "the creation to be tried again", func() bool { return f.count("POST") == 2 })
	r.Node(EventWarning, "OtherDataPlane", "Serve", "bridge br-int is gone")
	stop()
	if count() != 2 {
		t.Errorf("the node's own Event: series of %d, want 2: %+v", count(), f.written())
	}
}

// What one change of a Service makes many nodes say, again and again, is one Event, which one of them continues. What a node
// says of itself is its own.
func TestManyNodesWriteOneEvent(t *testing.T) {
	f := newEventAPI(t)
	const nodes, times = 20, 10
	var stops []func()
	for i := range nodes {
		r, _, stop := f.recorderOf(t, fmt.Sprint("node-", i))
		stops = append(stops, stop)
		for j := range times {
			r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "PortTaken", "Program", "by a process")
			r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "PortTaken", "Program", fmt.Sprint("by process ", j))
		}
		r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "Another", "Program", "")
		r.Node(EventNormal, "Starting", "StartNkp", "")
	}
	for _, stop := range stops {
		stop()
	}
	reasons := map[string]int{}
	for _, e := range f.written() {
		reasons[e.Reason]++
	}
	if want := map[string]int{"PortTaken": 1, "Another": 1, "Starting": nodes}; !maps.Equal(reasons, want) {
		t.Errorf("Events: %v; want %v", reasons, want)
	}
	if n := f.count("PATCH"); n > times {
		t.Errorf("%d changes of the Event; one node makes %d", n, times-1)
	}
}

// An object gets 25 Events at once and no more; others are not affected.
func TestRecorderLimit(t *testing.T) {
	f := newEventAPI(t)
	r, _, stop := f.recorder(t)
	for i := range 200 {
		r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, fmt.Sprint("Reason", i), "Program", "x")
	}
	r.Service(k8s.ServiceName{Namespace: "default", Name: "other"}, EventWarning, "Reason", "Program", "x")
	wait.For(t, "the last Event", func() bool {
		return slices.ContainsFunc(f.written(), func(e eventsv1.Event) bool { return e.Regarding.Name == "other" })
	})
	stop()
	perObject := map[string]int{}
	for _, e := range f.written() {
		perObject[e.Regarding.Name]++
	}
	if perObject["web"] != 25 || perObject["other"] != 1 {
		t.Errorf("Events by object: %v", perObject)
	}
}

// While the server is away only the queue waits; the Event is written when the server is back, and the log has
// one line about it.
func TestRecorderServerAway(t *testing.T) {
	f := newEventAPI(t)
	f.set(503)
	r, log, stop := f.recorder(t)
	r.Node(EventNormal, "Starting", "StartNkp", "")
	wait.For(t, "a few attempts", func() bool { return f.count("POST") >= 3 })
	f.set(0)
	wait.For(t, "the Event", func() bool { return len(f.written()) == 1 })
	stop()
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "fake says so") {
		t.Errorf("log:\n%s", log)
	}
}

// What the server refuses is not tried again, and does not hold up the next.
func TestRecorderRefused(t *testing.T) {
	f := newEventAPI(t)
	f.set(403)
	r, log, stop := f.recorder(t)
	r.Node(EventNormal, "First", "A", "")
	r.Node(EventNormal, "Second", "A", "")
	wait.For(t, "both were tried", func() bool { return f.count("POST") == 2 })
	f.set(0)
	r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "Third", "A", "")
	wait.For(t, "the third", func() bool { return len(f.written()) > 0 })
	stop()
	var reasons []string
	for _, e := range f.written() {
		reasons = append(reasons, e.Reason)
	}
	if !slices.Equal(reasons, []string{"Third"}) {
		t.Errorf("written %q", reasons)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("log:\n%s", log)
	}
}

// A server that never answers holds up neither those who record nor the end for good. What finds no room is dropped.
func TestRecorderNeverWaits(t *testing.T) {
	f := newEventAPI(t)
	f.block = make(chan struct{})
	defer close(f.block)
	r, log, stop := f.recorder(t)
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		for i := range eventQueue + 500 {
			r.Node(EventNormal, fmt.Sprint("Reason", i), "A", "")
		}
	}()
	wait.Closed(t, "the last record", recorded)
	if d := r.Dropped(); d < 499 || d > 500 {
		t.Errorf("%d dropped", d)
	}
	if n := strings.Count(log.String(), "are dropped"); n != 1 {
		t.Errorf("log:\n%s", log)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); stop() }()
	wait.Closed(t, "the end", ended)
}

func TestLogRecorder(t *testing.T) {
	var log lockedBuffer
	r := NewLogRecorder("node-1", slog.New(slog.NewTextHandler(&log, nil)))
	r.Service(k8s.ServiceName{Namespace: "default", Name: "web"}, EventWarning, "PortTaken", "Program", "by nginx")
	r.Node(EventNormal, "Starting", "StartNkp", "")
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`regarding="Service default/web"`, "reason=PortTaken", `note="by nginx"`, `regarding="Node node-1"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is missing in\n%s", want, &log)
		}
	}
}
