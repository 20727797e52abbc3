package api

import (
	"context"
	"net/url"
	"strconv"

	"github.com/nkp-proxy/nkp/internal/trace"
)

// Trace asks the agent to explain a packet.
func (c *Caller) Trace(ctx context.Context, r trace.Request) (*trace.Result, error) {
	if r.Probe {
		return fetch[trace.Result](ctx, c, SendProbe, traceQuery(r))
	}
	return fetch[trace.Result](ctx, c, GetTrace, traceQuery(r))
}

// traceQuery writes what ParseTrace reads.
func traceQuery(r trace.Request) url.Values {
	return url.Values{"from": {r.From}, "to": {r.To}, "protocol": {r.Protocol}, "in": {r.In},
		"live": {strconv.FormatBool(r.Live)}, "reply": {strconv.FormatBool(r.Reply)}}
}

// ParseTrace reads the parameters of a request about a packet.
func ParseTrace(v url.Values) (r trace.Request, e trace.Ends, err error) {
	r = trace.Request{From: v.Get("from"), To: v.Get("to"), Protocol: v.Get("protocol"), In: v.Get("in")}
	r.Live, _ = strconv.ParseBool(v.Get("live"))
	r.Reply, _ = strconv.ParseBool(v.Get("reply"))
	e, err = r.Parse("")
	return r, e, err
}

// Sample asks the agent for what it sees of a packet's connections now.
func (c *Caller) Sample(ctx context.Context, r trace.Request) (*trace.Sample, error) {
	return fetch[trace.Sample](ctx, c, GetSample, traceQuery(r))
}
