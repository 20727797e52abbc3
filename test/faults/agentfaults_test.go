//go:build linux

package faults

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// agentFaults disturb the agent, what it hears and what it may say, never the switch's packets: connections to stable
// Services must not notice.
var agentFaults = []fault{
	{"agent killed, started at once", func(s *script) error {
		return errors.Join(s.stop(syscall.SIGKILL), s.start())
	}},
	{"agent killed, away for a while", func(s *script) error {
		return errors.Join(s.stop(syscall.SIGKILL), s.churn(1), s.wait(200, 2000), s.start())
	}},
	{"agent killed in the middle of a change", func(s *script) error {
		err := errors.Join(s.churn(2))
		s.wait(0, 80)
		return errors.Join(err, s.stop(syscall.SIGKILL), s.start())
	}},
	{"agent killed while it starts", func(s *script) error {
		var err error
		for range 3 {
			err = errors.Join(err, s.stop(syscall.SIGKILL), s.start())
			s.wait(20, 400)
		}
		return err
	}},
	{"agent ended in order", func(s *script) error {
		return errors.Join(s.stop(syscall.SIGTERM), s.churn(1), s.start())
	}},
	{"agent stopped (SIGSTOP) amid changes", func(s *script) error {
		p, err := s.running()
		if err != nil {
			return err
		}
		err = p.Cmd.Process.Signal(syscall.SIGSTOP)
		err = errors.Join(err, s.churn(5), s.wait(200, 2000))
		return errors.Join(err, p.Cmd.Process.Signal(syscall.SIGCONT))
	}},
	{"channel cut", func(s *script) error {
		s.channel.cut()
		return nil
	}},
	{"channel cut again and again amid changes", func(s *script) error {
		for range 5 {
			if err := s.churn(1); err != nil {
				return err
			}
			s.channel.cut()
			s.wait(0, 300)
		}
		return nil
	}},
	{"channel refused", func(s *script) error {
		return s.disturb(s.channel, disturbance{refuse: true}, true, 200, 2000)
	}},
	{"channel a hole", func(s *script) error {
		return s.disturb(s.channel, disturbance{hole: true}, false, 500, 3000)
	}},
	{"channel slow", func(s *script) error {
		return s.disturb(s.channel, disturbance{delay: s.between(2, 100)}, false, 500, 2500)
	}},
	{"channel dripping", func(s *script) error {
		return s.disturb(s.channel, disturbance{drip: 1 + s.r.IntN(30)}, false, 300, 1500)
	}},
	{"channel cut in the middle of messages", func(s *script) error {
		return s.disturb(s.channel, disturbance{after: 1 + s.r.IntN(200_000)}, true, 500, 2000)
	}},
	{"database cut", func(s *script) error {
		s.database.cut()
		return s.churn(1)
	}},
	{"database refused", func(s *script) error {
		return s.disturb(s.database, disturbance{refuse: true}, true, 200, 2000)
	}},
	{"database a hole", func(s *script) error {
		return s.disturb(s.database, disturbance{hole: true}, false, 500, 3000)
	}},
	{"database dripping while pods come and go", func(s *script) error {
		s.database.set(disturbance{drip: 1 + s.r.IntN(30)})
		err := errors.Join(s.pod(s.guest == nil), s.churn(1), s.pod(s.guest == nil))
		s.database.set(disturbance{})
		return err
	}},
	{"database cut in the middle of messages", func(s *script) error {
		return s.disturb(s.database, disturbance{after: 1 + s.r.IntN(20_000)}, true, 500, 2000)
	}},
	{"agent killed while the database is refused", func(s *script) error {
		s.database.set(disturbance{refuse: true})
		err := errors.Join(s.stop(syscall.SIGKILL), s.start())
		s.wait(100, 1500)
		s.database.set(disturbance{})
		return err
	}},
	{"both channels refused", func(s *script) error {
		s.database.set(disturbance{refuse: true})
		s.database.cut()
		err := s.disturb(s.channel, disturbance{refuse: true}, true, 200, 2000)
		s.database.set(disturbance{})
		return err
	}},
	{"flood of changes", func(s *script) error { return s.churn(40) }},
	{"a pod comes", func(s *script) error { return errors.Join(s.pod(true), s.churn(2)) }},
	{"a pod goes", func(s *script) error { return errors.Join(s.pod(false), s.churn(2)) }},
	{"flows of disrupted Services deleted by hand", func(s *script) error {
		for _, v := range s.disruptedServices() {
			if _, err := s.Ofctl("del-flows", s.Bridge, matching(v.vip)); err != nil {
				return err
			}
		}
		return nil
	}},
}

func matching(vip netip.Addr) string {
	if vip.Is6() {
		return "tcp6,ipv6_dst=" + vip.String()
	}
	return "tcp,nw_dst=" + vip.String()
}

// disturb disturbs a channel for a drawn time while Services change; cut ends the connections there are.
func (s *script) disturb(c *channel, d disturbance, cut bool, lo, hi int) error {
	c.set(d)
	if cut {
		c.cut()
	}
	err := s.churn(1 + s.r.IntN(5))
	s.wait(lo, hi)
	c.set(disturbance{})
	return err
}

// pod makes the guest pod come or go. The switch hears of it from the database.
func (s *script) pod(come bool) error {
	if come == (s.guest != nil) {
		return nil
	}
	if !come {
		p := s.guest
		s.guest = nil
		return s.RemovePod(p)
	}
	p, err := s.AddPod(testbed.PodSpec{Name: fmt.Sprint("guest-", s.r.IntN(1000))})
	if err != nil {
		return err
	}
	s.guest = p
	return nil
}
