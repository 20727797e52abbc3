package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// newWait returns the command that waits for a Service to be in force on the nodes of a cluster.
func newWait(on *target) *cobra.Command {
	w := &serviceWait{nodes: on.nodes, reasons: map[string]string{}}
	cmd := &cobra.Command{
		Use: "wait svc/[NAMESPACE/]NAME",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("wait takes one Service, such as svc/default/web; got %q", args)
			}
			if err := w.parse(args[0], "default"); err != nil {
				return usageError("%w", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if w.timeout <= 0 {
				return usageError("--timeout %v is not positive", w.timeout)
			}
			w.out, w.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			w.without = strings.TrimPrefix(w.without, "pod/")
			return w.run(cmd.Context(), args[0])
		},
	}

	on.nodes.adapt(cmd, "only this node", "Wait until all nodes have a Service's EndpointSlices in force",
		`wait reads a Service and its EndpointSlices, and returns when every node's agent has them in force as
they were then, or as they became since. A pod that is in none of them can then be deleted without a
failed connection. The EndpointSlice controller needs a moment to follow a pod: --without waits for that
first. Nodes that are added meanwhile count. Why an agent is waited for is printed at once; where no
waiting changes the reason (--skip-services, --cost-limit, an agent that follows manifests), the command
ends with it. You also need the rights to get Services and to list EndpointSlices. Exit status: 0 in
force on all nodes with a pod of nkp's, 1 not on all before --timeout or not known, 2 no such Service, or
no answer.`,
		"  kubectl nkp wait svc/default/web\n  kubectl label pod web-1 app- && "+
			"kubectl nkp wait svc/web --without web-1 && kubectl delete pod web-1")
	f := cmd.Flags()
	f.StringVar(&w.without, "without", "",
		"first wait until no EndpointSlice of the Service names this pod")
	f.DurationVar(&w.timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// serviceWait is one run of the command wait.
type serviceWait struct {
	nodes       *nodes
	name        k8s.ServiceName
	without     string // a pod
	timeout     time.Duration
	out, errOut io.Writer
	want        map[string]string // version by the name of an EndpointSlice, and of theService
	wantList    string            // version of the list that want is from

	mu      sync.Mutex        // protects what follows
	reasons map[string]string // why a node does not have them in force; "": it does
	printed []string          // reasons that agents gave, each once
	final   []string          // nodes whose reason no waiting changes

	cancel context.CancelFunc // ends the wait

	listing singleflight.Group // of lists for agents whose state is in doubt
}

// parse reads the argument: svc/NAMESPACE/NAME, or svc/NAME in a namespace.
func (w *serviceWait) parse(text, namespace string) (err error) {
	w.name, err = k8s.ParseServiceName(strings.TrimPrefix(inNamespace(text, "svc/", namespace), "svc/"))
	return err
}

func (w *serviceWait) run(ctx context.Context, service string) error {
	begun := time.Now()
	ctx, w.cancel = context.WithTimeout(ctx, w.timeout)
	defer w.cancel()
	peers, err := w.nodes.peers(ctx)
	if err == nil {
		err = w.parse(service, w.nodes.namespace)
	}
	if err == nil {
		err = w.read(ctx)
	}
	if exit := (*exitError)(nil); err != nil && !errors.As(err, &exit) {
		err = &exitError{exitUsage, err}
	}
	if err != nil {
		return err
	}

	stop := w.showProgress(ctx)
	for more := peers; len(more) > 0 && err == nil; {
		w.awaitAll(ctx, more)
		more, err = w.joined(ctx)
		peers = append(peers, more...)
	}
	stop()
	if err != nil {
		return fmt.Errorf("nodes that came meanwhile are not known: %w", err)
	}
	return w.report(ctx, peers, time.Since(begun))
}

// awaitAll waits until all agents have in force what is wanted, or the context ends.
func (w *serviceWait) awaitAll(ctx context.Context, peers []peer) {
	slots := make(chan struct{}, parallelNodes)
	var all sync.WaitGroup
	w.mu.Lock()
	for _, p := range peers {
		w.reasons[p.Node] = notAsked
	}
	w.mu.Unlock()
	for _, p := range peers {
		all.Go(func() { w.await(ctx, p, slots) })
	}
	all.Wait()
}

// joined returns the agents of nodes that were added since the agents were listed; none if the context has
// ended.
func (w *serviceWait) joined(ctx context.Context) ([]peer, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	peers, err := w.nodes.agents(ctx)
	if len(w.reasons) == 0 {
		err = nil // all nodes have left, and no agent at all is an error
	}
	return slices.DeleteFunc(peers, func(p peer) bool {
		_, known := w.reasons[p.Node]
		return known
	}), err
}

const notAsked = "was not asked"

// read reads what to wait for: the Service, and its EndpointSlices once none has the pod w.without.
func (w *serviceWait) read(ctx context.Context) (err error) {
	var still *exitError // what the last answer says
	for {
		w.want, w.wantList, err = w.list(ctx)
		if err != nil && still != nil && ctx.Err() != nil { // the time ended amid a question
			return still
		}
		if !errors.As(err, &still) || !pause(ctx, waitPause) {
			return err
		}
	}
}

// oneQuestion bounds how long one agent that does not answer keeps others from being asked.
const oneQuestion = 10 * time.Second

// await asks one agent again and again until it has in force what is wanted, or the context ends. A slot is
// held while it is asked.
func (w *serviceWait) await(ctx context.Context, p peer, slots chan struct{}) {
	defer func() { p.Close() }()
	for {
		slots <- struct{}{}
		asking, cancel := context.WithTimeout(ctx, min(w.nodes.timeout, oneQuestion))
		answer, err := p.InForce(asking, w.name)
		cancel()

		var why string
		final := false
		if err != nil {
			why = oneLine(err.Error())
			if at, _ := w.nodes.cluster.Agents(ctx, p.Node); len(at) > 0 { // it may run in another pod by now
				p.Close()
				p = peer{p.Node, at[0].Pod, api.NewRemoteCaller(p.Node, at[0].Dial)}
			} else if w.left(ctx, p.Node) {
				<-slots
				return
			}
		} else {
			why, final = w.judge(ctx, answer)
		}
		<-slots

		w.mu.Lock()
		if ctx.Err() == nil || why == "" || w.reasons[p.Node] == notAsked {
			w.reasons[p.Node] = why
		}
		if final {
			w.final = append(w.final, p.Node)
			w.cancel() // all nodes are wanted, and this one will not come
		} else if ctx.Err() == nil && (err != nil || answer.Why != "") {
			w.explain(p.Node, why)
		}
		w.mu.Unlock()
		if why == "" || final || !pause(ctx, waitPause) {
			return
		}
	}
}

// judge returns why an answer is not what is waited for; "": it is. The reason is final if no waiting changes
// it: one that the agent calls final holds for the versions that it has.
func (w *serviceWait) judge(ctx context.Context, answer *api.InForce) (why string, final bool) {
	lack := ""
	if answer.Why == "" || answer.Service != "" {
		lack = w.lacks(ctx, &answer.Versions)
	}
	if answer.Why != "" {
		return answer.Why, answer.Final && lack == ""
	}
	return lack, false
}

// maxPrinted bounds how many reasons are printed while the command waits.
const maxPrinted = 10

// explain prints why a node is waited for, unless the reason is printed already. w.mu is held.
func (w *serviceWait) explain(node, why string) {
	if len(w.printed) < maxPrinted && !slices.Contains(w.printed, why) {
		w.printed = append(w.printed, why)
		clear := ""
		if redraws(w.errOut) {
			clear = "\r" + clearToEOL
		}
		fmt.Fprintf(w.errOut, "%swaiting for %s: %s\n", clear, node, why)
	}
}

// left reports whether a node is not in the cluster any more. It is then not counted.
func (w *serviceWait) left(ctx context.Context, node string) bool {
	names, err := w.nodes.cluster.Nodes(ctx)
	if err != nil || slices.Contains(names, node) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.reasons, node)
	return true
}

// pause waits, and reports whether the context goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// theService is the key of the Service among the names of its EndpointSlices.
const theService = ""

// lacks returns how what an agent has in force differs from what is wanted and from later states of it; "":
// it does not. Where the versions do not say which is later, the API server is asked what there is now.
func (w *serviceWait) lacks(ctx context.Context, answer *k8s.Versions) string {
	have := map[string]string{theService: answer.Service}
	maps.Copy(have, answer.EndpointSlices)
	both := maps.Clone(w.want)
	maps.Copy(both, have)

	var doubtful []string
	for name := range both {
		got, want := have[name], cmp.Or(w.want[name], w.wantList) // a slice that came later than the list
		order, err := resourceversion.CompareResourceVersion(got, want)
		switch {
		case err != nil && got != want:
			doubtful = append(doubtful, name)
		case err == nil && order < 0:
			return w.differs(name, got)
		}
	}
	if len(doubtful) == 0 {
		return ""
	}

	present, err, _ := w.listing.Do("", func() (any, error) {
		versions, _, err := w.list(ctx)
		return versions, err
	})
	for _, name := range doubtful {
		if why := w.differs(name, have[name]); err != nil {
			return why + ": " + oneLine(err.Error())
		} else if present.(map[string]string)[name] != have[name] {
			return why
		}
	}
	return ""
}

// differs names an object that an agent has at another version than is wanted.
func (w *serviceWait) differs(name, got string) string {
	object := "EndpointSlice " + name
	if name == theService {
		object = "the Service"
	}
	if w.want[name] == "" {
		return "has " + object + ", which is deleted"
	}
	return fmt.Sprintf("has %s at version %q, not %s", object, got, w.want[name])
}

// list returns the versions of the Service and its EndpointSlices, and that of the list. A slice that names
// the pod w.without is an exitError.
func (w *serviceWait) list(ctx context.Context) (versions map[string]string, at string, err error) {
	service, err := w.nodes.cluster.Service(ctx, w.name.Namespace, w.name.Name)
	if err != nil {
		return nil, "", err
	}
	if service.Spec.Type == v1.ServiceTypeExternalName || service.Spec.ClusterIP == v1.ClusterIPNone {
		return nil, "", fmt.Errorf("svc/%s has no cluster IP: nkp does not serve it, "+
			"and clients know its endpoints from DNS alone", w.name)
	}
	list, err := w.nodes.cluster.Slices(ctx, w.name.Namespace, w.name.Name)
	if err != nil {
		return nil, "", err
	}

	versions = map[string]string{theService: service.ResourceVersion}
	for i := range list.Items {
		s := &list.Items[i]
		versions[s.Name] = s.ResourceVersion
		for _, e := range s.Endpoints {
			if t := e.TargetRef; w.without != "" && t != nil && t.Kind == "Pod" && t.Name == w.without {
				return nil, "", &exitError{exitFailure,
					fmt.Errorf("EndpointSlice %s still names pod %s", s.Name, w.without)}
			}
		}
	}
	return versions, list.ResourceVersion, nil
}

// showProgress shows on a terminal how many nodes are waited for, until the function that it returns is
// called.
func (w *serviceWait) showProgress(ctx context.Context) (stop func()) {
	if !redraws(w.errOut) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause(ctx, time.Second) {
			waiting, of := w.waiting()
			text := fmt.Sprintf("waiting for %s of %d: %s",
				dataplane.Count(len(waiting), "node"), of, dataplane.Some(3, waiting))
			fmt.Fprint(w.errOut, "\r"+strings.Map(printable, text)+clearToEOL)
		}
		fmt.Fprint(w.errOut, "\r"+clearToEOL)
	}()
	return func() { cancel(); <-ended }
}

// waiting returns the nodes that do not have in force what is wanted, sorted, and of how many.
func (w *serviceWait) waiting() (names []string, of int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, why := range w.reasons {
		if why != "" {
			names = append(names, node)
		}
	}
	slices.Sort(names)
	return names, len(w.reasons)
}

// report prints how the wait ended, and which nodes have no agent that could be asked.
func (w *serviceWait) report(ctx context.Context, peers []peer, took time.Duration) error {
	waiting, of := w.waiting()
	if len(w.final) > 0 {
		slices.Sort(w.final)
		waiting = w.final
	}
	for _, node := range waiting {
		fmt.Fprintf(w.errOut, "%s: %s\n", node, w.reasons[node])
	}
	if len(w.final) > 0 {
		return fmt.Errorf("svc/%s is not in force on %s of %d, and no waiting changes that: %s", w.name,
			dataplane.Count(len(w.final), "node"), of, dataplane.Some(3, w.final))
	}
	if len(waiting) > 0 {
		return fmt.Errorf("svc/%s is not in force on %s of %d after %v: %s", w.name,
			dataplane.Count(len(waiting), "node"), of, took.Round(time.Second), dataplane.Some(3, waiting))
	}

	fmt.Fprintf(w.out, "svc/%s with %s is in force on %s\n", w.name,
		dataplane.Count(len(w.want)-1, "EndpointSlice"), dataplane.Count(of, "node"))
	if w.nodes.node != "" {
		return nil
	}
	others := w.nodes.without(ctx, peers)
	others.write(w.out)
	return nil
}
