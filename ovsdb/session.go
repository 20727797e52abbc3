package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/rpc2"
	"github.com/cenkalti/rpc2/jsonrpc"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// settle is how long a session collects changes before it lists the rows, because
// one transaction arrives as many events.
const settle = 5 * time.Millisecond

// maxTaken bounds the changes that one session takes, in bytes, and with them its cache. After that a new
// session lists anew: a bridge with honest changes gets there after hours at most, and loses nothing. A test
// makes it less.
var maxTaken = 64 << 20

var (
	errLost      = errors.New("connection lost")
	errSilent    = errors.New("the server does not answer")
	errMalformed = errors.New("the server sends what is not OVSDB (RFC 7047)")
	errMuch      = errors.New("many changes have come: listing everything again")
)

// session is one connection with its monitor. It uses libovsdb's types and cache, but not its client, which
// decodes in goroutines of its own. libovsdb and the JSON-RPC library panic on some malformed messages; here
// a panic ends only the session. The session's memory is bounded by maxMessage and maxTaken.
type session struct {
	conn  *boundedConn
	codec *boundedCodec
	rpc   *rpc2.Client
	cache *cache.TableCache // set before filled is closed
	taken int               // bytes of changes; for the goroutine that fills the cache

	dirty  chan struct{} // capacity 1: something has changed
	filled chan struct{} // closed when the cache holds the first state
	lost   chan struct{} // closed when the connection is gone
	once   sync.Once     // guards the transition to lost
	err    error         // why; written before lost is closed
}

// open connects and lists everything; ctx bounds both.
func open(ctx context.Context, o Options) (*session, error) {
	e, err := parseEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	nc, err := dial(ctx, e, o.TLS)
	if err == nil {
		s := newSession(nc, o.Timeout)
		if err = s.start(ctx); err == nil {
			return s, nil
		}
		s.close()
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", errSilent, ctx.Err())
	}
	return nil, err
}

// newSession starts to read from nc. limit bounds each write.
func newSession(nc net.Conn, limit time.Duration) *session {
	s := &session{
		conn: &boundedConn{Conn: nc, limit: limit}, dirty: make(chan struct{}, 1),
		filled: make(chan struct{}), lost: make(chan struct{}),
	}
	s.codec = &boundedCodec{Codec: jsonrpc.NewJSONCodec(s.conn), conn: s.conn}
	s.rpc = rpc2.NewClientWithCodec(s.codec)
	s.rpc.SetBlocking(true) // what comes is handled in order, by read
	s.rpc.Handle("echo", func(_ *rpc2.Client, args []any, reply *[]any) error {
		*reply = args
		return nil
	})
	s.rpc.Handle("update2", func(_ *rpc2.Client, params []json.RawMessage, _ *[]any) error {
		if err := s.update(params); err != nil {
			s.fail(err)
		}
		return nil
	})
	go s.read() // ends with the connection
	return s
}

// read decodes and handles all that the server sends.
func (s *session) read() {
	defer func() {
		err := s.codec.why()
		if p := recover(); p != nil {
			err = malformed(p)
		}
		s.fail(err)
	}()
	s.rpc.Run()
}

// fail ends the session for the given reason, once.
func (s *session) fail(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.lost)
		s.conn.Close()
	})
}

func (s *session) close() { s.fail(errLost) }

// call sends a request and waits for its reply. After an error reply must not be read: the reader may still
// write to it.
func (s *session) call(ctx context.Context, method string, args []any, reply any) error {
	call := s.rpc.Go(method, args, reply, make(chan *rpc2.Call, 1))
	var refusal rpc2.ServerError
	select {
	case <-call.Done:
		switch {
		case call.Error == nil:
			return nil
		case errors.As(call.Error, &refusal):
			return fmt.Errorf("the server refuses %s: %.200q", method, string(refusal))
		}
		s.conn.Close() // any other error ends the session; the reader may have a more precise one
	case <-s.lost:
	case <-ctx.Done():
	}
	select {
	case <-s.lost:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transact runs a transaction (RFC 7047 §4.1.3).
func (s *session) transact(
	ctx context.Context, ops ...ovsdb.Operation,
) (results []ovsdb.OperationResult, err error) {
	err = s.call(ctx, "transact", ovsdb.NewTransactArgs(database, ops...), &results)
	if err != nil {
		return nil, err
	}
	return results, nil
}

// start requests the schema, then all rows and their changes from then on. It recovers from panics, because
// libovsdb panics on some invalid schemas.
func (s *session) start(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformed(p)
		}
	}()

	var schema ovsdb.DatabaseSchema
	if err := s.call(ctx, "get_schema", ovsdb.NewGetSchemaArgs(database), &schema); err != nil {
		return err
	}

	client, err := newModel()
	if err != nil {
		return err
	}
	db, errs := model.NewDatabaseModel(schema, client)
	if len(errs) > 0 {
		return fmt.Errorf("the server's schema does not fit: %.300q", errors.Join(errs...).Error())
	}

	if s.cache, err = cache.NewTableCache(db, nil, nil); err != nil {
		return err
	}
	go s.cache.Run(s.lost) // drains its queue of events, which is not used

	var rows ovsdb.TableUpdates2
	monitor := ovsdb.NewMonitorArgs(database, "nkp", newMonitor())
	if err := s.call(ctx, ovsdb.ConditionalMonitorRPC, monitor, &rows); err != nil {
		return err
	}
	if err := s.cache.Populate2(rows); err != nil {
		return malformed(err)
	}

	close(s.filled)
	return nil
}

// update applies changes (ovsdb-server(7), "update2"). Changes that arrive before the first state wait for
// it.
func (s *session) update(params []json.RawMessage) error {
	select {
	case <-s.filled:
	case <-s.lost:
		return s.err
	}
	if len(params) != 2 {
		return fmt.Errorf("%w: an update with %d parameters", errMalformed, len(params))
	}
	if s.taken += len(params[1]); s.taken > maxTaken {
		return errMuch
	}
	var rows ovsdb.TableUpdates2
	if err := json.Unmarshal(params[1], &rows); err != nil {
		return malformed(err)
	}
	if err := s.cache.Populate2(rows); err != nil {
		return malformed(err)
	}
	select {
	case s.dirty <- struct{}{}:
	default:
	}
	return nil
}

// serve calls refresh after each change until the connection is lost, the server
// does not answer, or ctx ends.
func (s *session) serve(ctx context.Context, o Options, refresh func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := make(chan error, 1)
	go s.probe(ctx, o, silent) // ends with ctx
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.lost:
			return s.err
		case err := <-silent:
			return err
		case <-s.dirty:
		}
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		refresh()
	}
}

// probe asks for an echo each interval and reports the first that is not
// answered.
func (s *session) probe(ctx context.Context, o Options, silent chan<- error) {
	for {
		if sleep(ctx, o.ProbeInterval) != nil {
			return
		}
		probe, cancel := context.WithTimeout(ctx, o.Timeout)
		var reply []any
		err := s.call(probe, "echo", ovsdb.NewEchoArgs(), &reply)
		late := probe.Err()
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if late != nil {
				err = fmt.Errorf("%w: silent for %s", errSilent, o.Timeout)
			}
			silent <- err
			return
		}
	}
}

// sleep waits for d or for the end of ctx, whose error it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// list reads the whole cache. Rows of one transaction may still be missing; the
// events of those follow.
func (s *session) list() rows {
	return rows{
		roots: cached[rootRow](s.cache, database), bridges: cached[bridgeRow](s.cache, "Bridge"),
		controllers: cached[controllerRow](s.cache, "Controller"),
		mirrors:     cached[mirrorRow](s.cache, "Mirror"),
		ports:       cached[portRow](s.cache, "Port"), interfaces: cached[interfaceRow](s.cache, "Interface"),
	}
}

// cached returns a table's rows, which share their slices and maps with the cache; it never changes them.
func cached[T any](c *cache.TableCache, table string) []T {
	all := c.Table(table).RowsShallow()
	list := make([]T, 0, len(all))
	for _, row := range all {
		list = append(list, *row.(*T))
	}
	return list
}
