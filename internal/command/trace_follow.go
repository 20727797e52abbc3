package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// How trace --follow looks. Between two looks at least sampleRest times as long as one took passes, because
// ovs-vswitchd does nothing else while it lists connections. The first look comes countersLag after the
// command began, and the last one countersLag after the end, because the switch learns what its datapath
// counted about once a second: packets of before are not counted, the last ones are.
const (
	followDefault = 10 * time.Second
	followMost    = 5 * time.Minute
	samplePeriod  = 500 * time.Millisecond
	sampleRest    = 20
	sampleTimeout = 5 * time.Second
	countersLag   = 1200 * time.Millisecond
)

// followPacket asks the agent again and again what becomes of the packets that r explains, for a time or
// until the context ends, and sets r.Follow. It calls begin after the first look: what comes from then on is
// counted. It calls say with each line that is new.
func followPacket(
	ctx context.Context, caller *api.Caller, ask trace.Request, r *trace.Result, limit time.Duration,
	begin func(), say func(string),
) error {
	ask.From, ask.To, ask.Protocol = r.Packet.From, r.Packet.To, string(r.Packet.Protocol)
	look := func(ctx context.Context) (*trace.Sample, error) {
		ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		return caller.Sample(ctx, ask)
	}

	select {
	case <-time.After(countersLag):
	case <-ctx.Done():
		return ctx.Err()
	}

	begun := time.Now()
	first, err := look(ctx)
	if err != nil {
		return err
	}

	took, f, lastError := time.Since(begun), trace.NewFollower(r, first), ""
	begin()
	begun = time.Now()

	for end := begun.Add(limit); ; {
		last := time.Until(end) <= 0
		pause := max(samplePeriod, sampleRest*took)
		if last {
			pause = countersLag
		} else if left := time.Until(end); pause > left {
			pause = left
		}

		interrupted := false
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			interrupted = true
		}

		asked := time.Now()
		s, err := look(context.WithoutCancel(ctx))
		took = time.Since(asked)
		switch {
		case err == nil:
			for _, line := range f.Add(time.Since(begun).Seconds(), s) {
				say(line)
			}
		case err.Error() != lastError:
			lastError = err.Error()
			say(fmt.Sprintf("%.1f s: %v", time.Since(begun).Seconds(), err))
		}

		if last || interrupted {
			r.Follow = f.Finish()
			return nil
		}
	}
}

// follow follows the packet and prints what became of it; as JSON together with r.
func (f *traceFlags) follow(
	ctx context.Context, caller *api.Caller, ask trace.Request, r *trace.Result, w io.Writer,
) error {
	begin, say := func() {}, func(string) {}
	if !f.output.data() {
		if err := r.WriteText(w); err != nil {
			return err
		}
		begin = func() {
			fmt.Fprintf(w, "\nfollowing connections from %s to %s/%s for %v: let the client try now\n",
				r.Packet.From, r.Packet.To, r.Packet.Protocol, f.followFor)
		}
		say = func(line string) { fmt.Fprintln(w, line) }
	}
	if err := followPacket(ctx, caller, ask, r, f.followFor, begin, say); err != nil {
		return err
	}
	if f.output.data() {
		return f.print(w, r)
	}
	fmt.Fprintln(w)
	for _, line := range r.Follow.Summary {
		say(line)
	}
	return agreement(r)
}
