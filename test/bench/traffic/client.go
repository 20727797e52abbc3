//go:build linux

package traffic

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what the client does.
type Options struct {
	// Targets are IPv4 addresses with port. Connections go to them in turns.
	Targets []string
	// Clients work side by side.
	Clients int
	// Duration of the run.
	Duration time.Duration
	// Connect makes a new connection for every request; otherwise each client keeps connections, one to each target.
	Connect bool
	// Against are targets to compare with: each client turns from the one to the other after every request, so that what
	// else the machine does meets both alike.
	Against []string
	// Blocks makes each request one of BlockSize; the servers are Sink's.
	Blocks bool
	// Turn, if not 0, makes all clients turn together, each time this has passed, with nothing under way in between: so
	// many clients stand in each other's way on one path only. Only with Against.
	Turn time.Duration
	// Watch is a process whose CPU time is recorded for each turn; 0: none.
	Watch int
}

// Result of a run. Times are in microseconds: of a request, or with Connect of connection and request.
type Result struct {
	Done   int     `json:"done"`
	Failed int     `json:"failed"`
	Second float64 `json:"seconds"` // that were spent
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`

	Against *Result `json:"against,omitempty"` // the same of Options.Against
	Turns   []Turn  `json:"turns,omitempty"`   // with Options.Turn
}

// Turn is what all clients did between two changes of sides.
type Turn struct {
	Done   int     `json:"done"`
	Second float64 `json:"seconds"`
	// CPU is the CPU time of the process that is watched, in microseconds.
	CPU float64 `json:"cpu"`
}

// Rate is requests per second.
func (t Turn) Rate() float64 { return float64(t.Done) / t.Second }

// Rate is requests per second.
func (r Result) Rate() float64 { return float64(r.Done) / r.Second }

// Args returns the arguments with which [Main] does what o says.
func (o Options) Args() []string {
	return []string{"-to", strings.Join(o.Targets, ","), "-against", strings.Join(o.Against, ","), "-clients", fmt.Sprint(o.Clients), "-for", o.Duration.String(), fmt.Sprintf("-connect=%t", o.Connect),
		fmt.Sprintf("-blocks=%t", o.Blocks), "-turn", o.Turn.String(), "-watch", strconv.Itoa(o.Watch)}
}

// Main is the client program. It prints a Result as JSON and returns the exit status.
func Main(args []string) int {
	fs := flag.NewFlagSet("traffic", flag.ContinueOnError)
	to := fs.String("to", "", "addresses with port, comma-separated")
	against := fs.String("against", "", "the same to compare with, in turns with those")
	clients := fs.Int("clients", 1, "clients side by side")
	d := fs.Duration("for", time.Second, "duration")
	connect := fs.Bool("connect", false, "a new connection for every request")
	blocks := fs.Bool("blocks", false, "requests are large")
	turn := fs.Duration("turn", 0, "all clients turn together, each time this has passed; 0: each after every request")
	watch := fs.Int("watch", 0, "PID of a process whose CPU time is recorded for each turn")
	if fs.Parse(args) != nil {
		return 2
	}
	o := Options{Targets: strings.Split(*to, ","), Clients: *clients, Duration: *d, Connect: *connect, Blocks: *blocks, Turn: *turn, Watch: *watch}
	if *against != "" {
		o.Against = strings.Split(*against, ",")
	}
	r, err := run(o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		return 1
	}
	return 0
}

func run(o Options) (Result, error) {
	lists := [][]string{o.Targets}
	if len(o.Against) > 0 {
		lists = append(lists, o.Against)
	}
	clients := make([]client, o.Clients)
	for i := range clients {
		for _, list := range lists {
			s, err := newSide(list, i, o)
			if err != nil {
				return Result{}, err
			}
			clients[i].sides = append(clients[i].sides, s)
		}
	}
	var turns [2][]Turn
	begin := time.Now()
	if o.Turn > 0 {
		if len(lists) < 2 {
			return Result{}, errors.New("turns are between two lists of targets")
		}
		var err error
		if turns, err = takeTurns(clients, o); err != nil {
			return Result{}, err
		}
	} else {
		together(clients, func(c *client) { c.run(o.Connect, begin.Add(o.Duration)) })
	}
	elapsed := time.Since(begin)
	r, err := summary(clients, 0, elapsed)
	r.Turns = turns[0]
	if err == nil && len(lists) > 1 {
		var against Result
		against, err = summary(clients, 1, elapsed)
		against.Turns = turns[1]
		r.Against = &against
	}
	return r, err
}

// together lets all clients work side by side.
func together(clients []client, work func(*client)) {
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { // ends with its work
			runtime.LockOSThread() // calls block
			defer runtime.UnlockOSThread()
			work(&clients[i])
		})
	}
	wg.Wait()
}

// summary puts together what all clients found on one of their sides. Who had only one side has spent all the time
// on it, otherwise that of its requests.
func summary(clients []client, number int, elapsed time.Duration) (r Result, err error) {
	var took []time.Duration
	for _, c := range clients {
		s := c.sides[number]
		r.Failed += s.failed
		took = append(took, s.took...)
		if s.err != nil && len(s.took) == 0 {
			err = s.err
		}
	}
	r.Second = elapsed.Seconds()
	if len(clients[0].sides) > 1 {
		var sum time.Duration
		for _, d := range took {
			sum += d
		}
		r.Second = sum.Seconds() / float64(len(clients))
	}
	r.Done = len(took)
	if slices.Sort(took); len(took) > 0 {
		r.P50, r.P99 = micro(took[len(took)/2]), micro(took[len(took)*99/100])
	}
	return r, err
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// client makes requests on its sides.
type client struct{ sides []*side }

// run makes requests on all sides in turns.
func (c *client) run(connect bool, end time.Time) {
	if !connect {
		for _, s := range c.sides {
			defer s.close()
			if !s.open() {
				return
			}
		}
	}
	for i := 0; time.Now().Before(end); i++ {
		if s := c.sides[i%len(c.sides)]; !s.timed(connect) && !connect {
			return
		}
	}
}

// side is where requests go, and how they fared.
type side struct {
	targets []unix.Sockaddr
	send    []byte // for a request
	next    int    // of targets, and of conns
	conns   []int  // kept connections, one to each target
	took    []time.Duration
	failed  int
	err     error // the last one
	buf     [requestSize]byte
}

func newSide(targets []string, first int, o Options) (*side, error) {
	s := &side{next: first, send: question[:]}
	if o.Blocks {
		s.send = make([]byte, BlockSize)
	}
	for _, t := range targets {
		a, err := netip.ParseAddrPort(t)
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()})
	}
	return s, nil
}

// open makes the connections that are kept.
func (s *side) open() bool {
	for range s.targets {
		fd, err := s.dial()
		if err != nil {
			s.failed, s.err = 1, err
			return false
		}
		s.conns = append(s.conns, fd)
	}
	return true
}

func (s *side) close() {
	for _, fd := range s.conns {
		_ = unix.Close(fd)
	}
}

// timed makes a request and notes how it fared, and whether it did.
func (s *side) timed(connect bool) bool {
	begin := time.Now()
	err := s.once(connect)
	if err == nil {
		s.took = append(s.took, time.Since(begin))
		return true
	}
	s.failed++
	s.err = err
	if connect {
		time.Sleep(time.Millisecond)
	}
	return false
}

// once makes a request over the next connection, or over a new one. That one ends with a reset: otherwise the client would
// run out of ports.
func (s *side) once(connect bool) error {
	if !connect {
		s.next++
		return s.request(s.conns[s.next%len(s.conns)])
	}
	fd, err := s.dial()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return s.request(fd)
}

func (s *side) dial() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	to := s.targets[s.next%len(s.targets)]
	s.next++
	second := unix.Timeval{Sec: 1}
	for _, err := range []error{
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &second), // of connect, too
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &second),
		connect(fd, to),
	} {
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// connect goes on after a signal (see request): asked again, the kernel waits for the connection that is under way.
func connect(fd int, to unix.Sockaddr) error {
	for {
		switch err := unix.Connect(fd, to); err {
		case unix.EINTR:
		case unix.EISCONN:
			return nil
		default:
			return err
		}
	}
}

// question is a line, so that package testbed's servers answer it, too.
var question = [requestSize]byte{requestSize - 1: '\n'}

// request sends one and waits for the answer. The kernel does not take up a call with a time limit again after a signal, such
// as Go's own (socket(7), SO_RCVTIMEO; signal(7)): EINTR is nothing to the connection.
func (s *side) request(fd int) error {
	for left := s.send; len(left) > 0; {
		n, err := unix.Write(fd, left)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		}
		left = left[n:]
	}
	for left := requestSize; left > 0; {
		n, err := unix.Read(fd, s.buf[:left])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		}
		left -= n
	}
	return nil
}
