//go:build linux

package faults

import (
	"errors"
	"fmt"
	"strings"
)

// nkpCookies is what `ovs-ofctl` calls the flows of nkp's default layout.
const nkpCookies = "cookie=0x6e6b700000000000/0xffffff0000000000"

// switchFaults disturb what carries the packets. Connections fail meanwhile; afterwards everything must work again.
//
// The database's own server is among them: ovs-vswitchd that has lost it, and with it the database's lock, does not run its
// datapath until it is back (bridge_run in vswitchd/bridge.c), and it looks after 1, 2, 4 and 8 s. In userspace no packet
// passes meanwhile, whoever wrote the flows.
var switchFaults = []fault{
	{"ovs-vswitchd killed and started", func(s *script) error {
		s.KillVswitchd()
		s.wait(0, 500)
		return s.StartVswitchd()
	}},
	{"ovs-vswitchd restarted amid changes", func(s *script) error {
		s.StopVswitchd()
		err := s.churn(2)
		s.wait(0, 1500)
		return errors.Join(err, s.StartVswitchd())
	}},
	{"ovs-vswitchd restarted, flows restored by hand", func(s *script) error {
		saved, err := s.save()
		if err != nil {
			return err
		}
		s.StopVswitchd()
		return s.startRestoring(func() error {
			if err := s.restore(saved); err != nil && !strings.Contains(err.Error(), "GROUP_EXISTS") {
				return err
			}
			return nil // nkp was faster
		})
	}},
	{"ovs-vswitchd restarted, flows left to nkp", func(s *script) error {
		s.StopVswitchd()
		return s.startRestoring(s.settleFlows)
	}},
	{"ovs-vswitchd and the database restarted", func(s *script) error {
		s.StopVswitchd()
		s.StopOvsdb()
		s.wait(0, 500)
		return errors.Join(s.StartOvsdb(), s.StartVswitchd())
	}},
	{"database restarted", func(s *script) error { return s.RestartOvsdb() }},
	{"database away amid changes", func(s *script) error {
		s.StopOvsdb()
		err := s.churn(3)
		s.wait(100, 1500)
		return errors.Join(err, s.StartOvsdb())
	}},
	{"database stopped (SIGSTOP) amid changes", func(s *script) error {
		err := errors.Join(s.PauseOvsdb(true), s.churn(3), s.wait(200, 2000))
		return errors.Join(err, s.PauseOvsdb(false))
	}},
	{"switch that lies", func(s *script) error {
		return s.behaviour(s.channel, 50+s.r.IntN(3000), false)
	}},
	{"database that lies about rows", func(s *script) error {
		return s.behaviour(s.database, 1+s.r.IntN(50), true)
	}},
	{"database that lies", func(s *script) error {
		return s.behaviour(s.database, 50+s.r.IntN(3000), false)
	}},
	{"switch stopped (SIGSTOP) amid changes", func(s *script) error {
		err := errors.Join(s.PauseVswitchd(true), s.churn(3), s.wait(300, 3000))
		return errors.Join(err, s.PauseVswitchd(false))
	}},
	{"all flows deleted by hand", func(s *script) error {
		_, err := s.Ofctl("del-flows", s.Bridge, nkpCookies)
		return err
	}},
	{"half of the flows deleted by hand", func(s *script) error {
		for _, table := range []string{"0", "1", "2", "11"} {
			if s.r.IntN(2) == 0 {
				if _, err := s.Ofctl("del-flows", s.Bridge, nkpCookies+",table="+table); err != nil {
					return err
				}
			}
		}
		return nil
	}},
	{"all groups deleted by hand", func(s *script) error {
		_, err := s.Ofctl("del-groups", s.Bridge)
		return err
	}},
	{"a table full amid changes", func(s *script) error {
		limit := fmt.Sprint(1 + s.r.IntN(20))
		_, err := s.Vsctl("--id=@full", "create", "Flow_Table", "flow_limit="+limit, "overflow_policy=refuse", "--",
			"set", "Bridge", s.Bridge, "flow_tables:1=@full")
		err = errors.Join(err, s.churn(5), s.wait(200, 1500))
		_, last := s.Vsctl("clear", "Bridge", s.Bridge, "flow_tables")
		return errors.Join(err, last)
	}},
	{"few flows in the datapath", func(s *script) error {
		_, err := s.Vsctl("set", "Open_vSwitch", ".", "other_config:flow-limit=10")
		err = errors.Join(err, s.wait(500, 2000))
		_, last := s.Vsctl("remove", "Open_vSwitch", ".", "other_config", "flow-limit")
		return errors.Join(err, last)
	}},
	{"connection tracker emptied", func(s *script) error {
		_, err := s.Appctl("dpctl/flush-conntrack")
		return err
	}},
}

// behaviour falsifies what comes to the agent by a channel, for a while and on several connections, which begin with all there is to
// say. The agent may believe what it cannot know to be false, until it is told the truth.
func (s *script) behaviour(c *channel, oneIn int, digits bool) error {
	for range 5 {
		c.set(disturbance{behaviour: oneIn, digits: digits})
		c.cut()
		if err := s.churn(1); err != nil {
			return err
		}
		s.wait(0, 400)
	}
	c.set(disturbance{})
	c.cut()
	return nil
}
