package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	recordutil "k8s.io/client-go/tools/record/util"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

const (
	eventController = "nkp"
	// attempts for one Event while the server is unreachable, as in client-go
	eventTries    = 12
	eventRetryMax = 10 * time.Second // longest pause between two attempts
	eventRequest  = 10 * time.Second // timeout of one request
	uidLife       = 10 * time.Minute // a Service may be deleted and recreated
	maxUIDs       = 1000
	maxExisting   = 1000
	eventLife     = time.Hour // by default, the API server deletes an Event then (--event-ttl)

	// Limits of the API (pkg/apis/core/validation/events.go), in bytes.
	noteLimit = 1024
	nameLimit = 128 // of instance, action and reason
)

// send writes one Event, unless the correlator skips it. After ctx has ended it makes at most one more
// attempt.
func (r *Recorder) send(ctx, requests context.Context, e event) {
	err := r.try(requests, &e)
	pause := r.retry
	for n := 1; err != nil && n < eventTries && ctx.Err() == nil && isTemporary(err); n++ {
		r.failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, eventRetryMax)
		err = r.try(requests, &e)
	}
	if err != nil {
		r.failed(err)
		return
	}
	r.lastError = ""
}

// isTemporary reports whether an error may be temporary. Missing permissions do not count as temporary here.
func isTemporary(err error) bool { return mayRecover(err) && !apierrors.IsForbidden(err) }

// failed logs an error once, until a different one occurs or an Event is written.
func (r *Recorder) failed(err error) {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // without the request, which names the Event
	}
	text := brief.Line(err.Error())
	if text == r.lastError {
		r.log.Debug("cannot write Event", "error", text)
		return
	}
	r.lastError = text
	r.log.Warn("cannot write Events to the API server", "error", text)
}

// try makes one attempt to write an Event.
func (r *Recorder) try(ctx context.Context, e *event) error {
	ctx, cancel := context.WithTimeout(ctx, eventRequest)
	defer cancel()
	if e.known == nil {
		regarding, err := r.reference(ctx, e)
		if err != nil {
			return err
		}
		res, err := r.correlator.EventCorrelate(e.core(regarding, r.node))
		if err != nil {
			return err
		}
		if res.Skip {
			return nil
		}
		e.known = res.Event
	}
	return r.write(ctx, e)
}

// write creates the Event, or updates the series that it belongs to.
func (r *Recorder) write(ctx context.Context, e *event) error {
	c := r.client.EventsV1().Events(e.known.Namespace)
	full := e.written(r.node)
	known, exists := r.exists.Get(full.Name)
	count, _ := known.(int32)
	if exists && count == 0 {
		return nil // another node continues it
	}

	if full.Series != nil {
		// The correlator counts each note by itself. Those of a Service with one reason are one Event.
		full.Series.Count = max(full.Series.Count, count+1)
		patch, err := json.Marshal(map[string]any{"series": full.Series})
		if err != nil {
			return err
		}
		_, err = c.Patch(ctx, full.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			r.exists.Add(full.Name, full.Series.Count, eventLife)
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		// The API server deletes Events after an hour.
	}

	_, err := c.Create(ctx, full, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) && !exists {
		count = max(count+1, e.known.Count)
		if err != nil && e.service != (k8s.ServiceName{}) { // else by an attempt whose answer was lost
			count = 0
		}
		r.exists.Add(full.Name, count, eventLife)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
		return nil // another node wrote it or an earlier attempt did, or the namespace is going away
	}
	return err
}

// reference returns a reference to the object that the Event is about. kubectl describe selects Events by
// UID.
func (r *Recorder) reference(ctx context.Context, e *event) (v1.ObjectReference, error) {
	if e.service == (k8s.ServiceName{}) {
		// For a Node, kubectl also selects Events with the name as UID, as the kubelet writes them.
		return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node, UID: types.UID(r.node)}, nil
	}
	uid, err := r.serviceUID(ctx, e.service)
	namespace, name := e.service.Namespace, e.service.Name
	return v1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name, UID: uid,
	}, err
}

// serviceUID returns a Service's UID, "" if it does not exist, from r.uids or the API server. It lists,
// because system:node-proxier may not get a Service. The server answers a list of one name from its cache, so
// nkp need not store UIDs of Services without Events.
func (r *Recorder) serviceUID(ctx context.Context, name k8s.ServiceName) (uid types.UID, err error) {
	if known, ok := r.uids.Get(name); ok {
		return known.(types.UID), nil
	}
	list, err := r.client.CoreV1().Services(name.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name.Name).String(), ResourceVersion: "0",
	})
	if err != nil && isTemporary(err) {
		return "", err
	}
	if err == nil && len(list.Items) == 1 {
		uid = list.Items[0].UID
	}
	r.uids.Add(name, uid, uidLife)
	return uid, nil
}

// name returns the Event's name, after correlation. All nodes give an Event about a Service the same one for
// one reason, so that of many nodes that see the same change of a Service one writes, and to the others the
// server says that the Event exists. Else a user who may write one Service could have every node of the
// cluster write.
func (e *event) name() string {
	of := &e.known.InvolvedObject
	if of.Kind != string(k8s.KindService) {
		return e.known.Name
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s/%s", of.Namespace, of.Name, of.UID, e.reason)
	return recordutil.GenerateEventName(of.Name, int64(h.Sum64()>>1))
}

// core returns the Event as a core/v1 Event, which the correlator requires.
func (e *event) core(regarding v1.ObjectReference, node string) *v1.Event {
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	name := recordutil.GenerateEventName(regarding.Name, e.at.UnixNano())
	at := metav1.NewTime(e.at)
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: namespace},
		InvolvedObject: regarding,
		Type:           e.typ,
		Reason:         brief.Cut(e.reason, nameLimit),
		Message:        brief.Cut(e.note, noteLimit),
		Source:         v1.EventSource{Component: eventController, Host: node},
		FirstTimestamp: at,
		LastTimestamp:  at,
		Count:          1,
	}
}

// written returns the Event, after correlation, as it goes to the server.
func (e *event) written(node string) *eventsv1.Event {
	c := e.known
	full := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: e.name(), Namespace: c.Namespace},
		EventTime:           metav1.NewMicroTime(c.FirstTimestamp.Time),
		ReportingController: eventController,
		ReportingInstance:   brief.Cut(eventController+"-"+node, nameLimit),
		Action:              brief.Cut(e.action, nameLimit),
		Reason:              c.Reason,
		Regarding:           c.InvolvedObject,
		Note:                brief.Cut(c.Message, noteLimit),
		Type:                c.Type,
	}
	if c.Count > 1 {
		full.Series = &eventsv1.EventSeries{Count: c.Count, LastObservedTime: metav1.NewMicroTime(e.at)}
	}
	return full
}
