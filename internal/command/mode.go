package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// choice is the data plane that was chosen.
type choice struct {
	mode.Choice
	db *ovsdb.Client // mode.OVS; to be closed
}

// close closes the connection to the database.
func (c *choice) close() {
	if c.db != nil {
		c.db.Close()
	}
}

// configuredMode returns the data plane if it is known without examining the node; ok is false if there is a
// choice.
func (s *settings) configuredMode() (c mode.Choice, ok bool, err error) {
	if c, ok, err = mode.Given(s.mode); err != nil {
		err = usageError("%w", err)
	}
	return c, ok, err
}

// decide decides on the data plane. It connects to the bridge where Open vSwitch is installed or asked for.
// The errors in absent are reasons to do without, unless --mode asks for it; every other error of connect is
// the caller's.
func (s *settings) decide(
	ctx context.Context, connect func() (*ovsdb.Client, error), absent ...error,
) (c choice, err error) {
	if _, _, err := s.configuredMode(); err != nil {
		return c, err
	}
	tryBridge := func() (bool, error) {
		db, err := connect()
		c.db = db
		return ctx.Err() == nil && slices.ContainsFunc(absent, func(a error) bool {
			return errors.Is(err, a)
		}), err
	}
	c.Choice, err = s.Choosing(serving.Everything).Facts(ctx, s.mode, tryBridge, nil).Choose()
	return c, err
}

// choose decides on the data plane for a long run. If Open vSwitch is installed, it waits up to wait for the
// bridge. A bridge that exists but cannot be used is an error, never a reason for iptables.
func (s *settings) choose(ctx context.Context, wait time.Duration, log *slog.Logger) (choice, error) {
	if _, ok, _ := s.configuredMode(); !ok {
		if err := s.checkBridgeFlags(); err != nil {
			return choice{}, err
		}
	}
	connect := func() (*ovsdb.Client, error) { return s.awaitBridge(ctx, wait, log) }
	return s.decide(ctx, connect, ovsdb.ErrUnreachable, ovsdb.ErrNoBridge)
}

// chooseNow decides on the data plane for a command, without waiting. Where Open vSwitch is installed and
// does not answer, that is an error: what the agent does there depends on the answer.
func (s *settings) chooseNow(ctx context.Context) (c choice, sw *ovsdb.Switch, err error) {
	_, configured, _ := s.configuredMode()
	last := s.LastModes()
	if !configured && len(last) > 0 && (last[0] == mode.NFTables || last[0] == mode.IPTables) {
		c.Choice = mode.Choice{Mode: last[0], Reason: "the agent's choice"}
	} else {
		var absent []error
		if !s.meansBridge() {
			absent = append(absent, ovsdb.ErrNoBridge)
		}
		c, err = s.decide(ctx, func() (*ovsdb.Client, error) { return s.ConnectDatabase(ctx) }, absent...)
	}
	if c.db != nil {
		now := c.db.Switch()
		sw = &now
	}

	// with --mode auto, the flags are those of many nodes
	if _, explicit := s.cfg.explicit["mode"]; err == nil && !explicit {
		if err = s.cfg.checkMode(c.Mode); err != nil {
			c.close()
		}
	}
	return c, sw, err
}

// bridgeFlags are flags that make sense only for a bridge.
var bridgeFlags = []string{"bridge", "configure-bridge", "gateway-mac", "openflow", "ports", "uplink-port"}

// checkBridgeFlags returns an error if the command line has flags for a bridge, but no --mode, on a node
// without Open vSwitch. Settings in a configuration file do not count, because many nodes may share the file.
func (s *settings) checkBridgeFlags() error {
	dir, installed := s.Choosing(serving.Everything).OVS()
	if _, explicit := s.cfg.explicit["mode"]; installed || explicit || s.cfg.origin["mode"] != "" {
		return nil
	}
	var given []string
	for _, name := range bridgeFlags {
		if _, ok := s.cfg.explicit[name]; ok {
			given = append(given, "--"+name)
		}
	}
	if len(given) == 0 {
		return nil
	}
	return fmt.Errorf("there is no Open vSwitch here (nothing in %s), but %s is for a bridge: "+
		"install Open vSwitch, name its database with --ovsdb, or choose: --mode iptables, "+
		"or --mode auto for a bridge where there is one and nftables or iptables where there is none; "+
		"nothing was changed", dir, strings.Join(given, ", "))
}

// meansBridge reports whether the command line names a bridge that has to exist: with --mode auto only where
// the last run had it.
func (s *settings) meansBridge() bool {
	_, named := s.cfg.explicit["bridge"]
	_, explicit := s.cfg.explicit["mode"]
	return named && (!explicit || slices.Contains(s.LastModes(), mode.OVS))
}
