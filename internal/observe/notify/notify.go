package notify

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Sign is a sign of life.
type Sign struct {
	Ready  bool   // what the service is for is done
	Status string // one line for `systemctl status`
	Stuck  bool   // the service has to be restarted: the watchdog is not fed
}

// Patience is how long Run waits for a sign that is ready. A service that is alive counts as started then all
// the same: others must not wait for it any longer, whatever it lacks (an API server, say).
const Patience = 30 * time.Second

// Times between two signs.
const (
	whileStarting = 100 * time.Millisecond
	usually       = 10 * time.Second // without a watchdog; with one, at most a third of its time
)

// ErrRestart is the cause of the context's end if the process goes on as another program (execve): the
// service manager is told of a reload then, not that the service stops.
var ErrRestart = errors.New("nkp starts again")

// Run asks for signs of life and passes them on until the context ends: READY=1 once, STATUS= when it
// changes, WATCHDOG=1 with each sign that is not stuck, STOPPING=1 (or, if nkp starts again, RELOADING=1) at
// the end. A sign that fails or does not come keeps the watchdog unfed. If no service manager listens (the
// environment variable NOTIFY_SOCKET is not set) it returns at once.
func Run(ctx context.Context, sign func(context.Context) (Sign, error)) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}

	period := usually
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return err
	}
	if watchdog > 0 {
		period = min(period, watchdog/3)
	}

	r := reporter{sign: sign, patience: time.Now().Add(Patience), period: period, watchdog: watchdog > 0}

	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrRestart) {
				send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
			} else {
				send(daemon.SdNotifyStopping)
			}
			return nil
		case <-time.After(wait):
		}

		wait = r.report(ctx)
	}
}

// reporter is what Run remembers from one sign to the next.
type reporter struct {
	sign     func(context.Context) (Sign, error)
	patience time.Time     // when to be ready without being so
	period   time.Duration // between signs, once started
	watchdog bool

	started bool // READY=1 is said
	status  string
}

// report passes one sign on and returns the time to wait until the next.
func (r *reporter) report(ctx context.Context) (wait time.Duration) {
	wait = whileStarting
	if r.started {
		wait = r.period
	}

	ctx, cancel := context.WithTimeout(ctx, r.period)
	defer cancel()
	s, err := r.sign(ctx)
	if err != nil {
		return wait // nothing is said: this is what the watchdog waits for
	}

	var state string
	if r.watchdog && !s.Stuck {
		state += daemon.SdNotifyWatchdog + "\n"
	}
	if !r.started && (s.Ready || time.Now().After(r.patience)) {
		state += daemon.SdNotifyReady + "\n"
		r.started, wait = true, r.period
	}

	if s.Status != r.status {
		state += "STATUS=" + s.Status + "\n"
		r.status = s.Status
	}

	if state != "" {
		send(state)
	}
	return wait
}

// send passes a message on. Errors of a socket that is full or gone pass: the service manager finds out by
// itself.
func send(state string) { _, _ = daemon.SdNotify(false, state) }
