//go:build linux

package traffic

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
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
}

// Result of a run. Times are in microseconds: of a request, or with Connect of connection and request.
type Result struct {
	Done   int     `json:"done"`
	Failed int     `json:"failed"`
	Second float64 `json:"seconds"` // that were spent
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`

	Against *Result `json:"against,omitempty"` // the same of Options.Against
}

// Rate is requests per second.
func (r Result) Rate() float64 { return float64(r.Done) / r.Second }

// Args gives the arguments with which [Main] does what o says.
func (o Options) Args() []string {
	return []string{"-to", strings.Join(o.Targets, ","), "-against", strings.Join(o.Against, ","), "-clients", fmt.Sprint(o.Clients), "-for", o.Duration.String(), fmt.Sprintf("-connect=%t", o.Connect)}
}

// Main is the client program. It prints a Result as JSON and gives the exit status.
func Main(args []string) int {
	fs := flag.NewFlagSet("traffic", flag.ContinueOnError)
	to := fs.String("to", "", "addresses with port, comma-separated")
	against := fs.String("against", "", "the same to compare with, in turns with those")
	clients := fs.Int("clients", 1, "clients side by side")
	d := fs.Duration("for", time.Second, "duration")
	connect := fs.Bool("connect", false, "a new connection for every request")
	if fs.Parse(args) != nil {
		return 2
	}
	o := Options{Targets: strings.Split(*to, ","), Clients: *clients, Duration: *d, Connect: *connect}
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
	begin := time.Now()
	for i := range clients {
		c := &clients[i]
		c.end = begin.Add(o.Duration)
		for _, list := range lists {
			s, err := newSide(list, i)
			if err != nil {
				return Result{}, err
			}
			c.sides = append(c.sides, s)
		}
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { // ends at the client's end
			runtime.LockOSThread() // calls block
			clients[i].run(o.Connect)
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	r, err := summary(clients, 0, elapsed)
	if err == nil && len(lists) > 1 {
		var against Result
		against, err = summary(clients, 1, elapsed)
		r.Against = &against
	}
	return r, err
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

// client makes requests on its sides in turns.
type client struct {
	sides []*side
	end   time.Time
}

func (c *client) run(connect bool) {
	if !connect {
		for _, s := range c.sides {
			defer s.close()
			if !s.open() {
				return
			}
		}
	}
	for i := 0; time.Now().Before(c.end); i++ {
		s := c.sides[i%len(c.sides)]
		begin := time.Now()
		err := s.once(connect)
		if err == nil {
			s.took = append(s.took, time.Since(begin))
			continue
		}
		s.failed++
		s.err = err
		if !connect {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// side is where requests go, and how they fared.
type side struct {
	targets []unix.Sockaddr
	next    int   // of targets, and of conns
	conns   []int // kept connections, one to each target
	took    []time.Duration
	failed  int
	err     error // the last one
	buf     [requestSize]byte
}

func newSide(targets []string, first int) (*side, error) {
	s := &side{next: first}
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
		unix.Connect(fd, to),
	} {
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// question is a line, so that package testbed's servers answer it, too.
var question = [requestSize]byte{requestSize - 1: '\n'}

func (s *side) request(fd int) error {
	if _, err := unix.Write(fd, question[:]); err != nil {
		return err
	}
	for left := requestSize; left > 0; {
		n, err := unix.Read(fd, s.buf[:left])
		switch {
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		}
		left -= n
	}
	return nil
}
