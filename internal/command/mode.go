package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// choice is a data plane and why it was chosen.
type choice struct {
	mode   agent.Mode
	reason string
	db     *ovsdb.Client // ModeOVS; to be closed
}

// close closes the connection to the database.
func (c *choice) close() {
	if c.db != nil {
		c.db.Close()
	}
}

// here returns an error if a data plane does not work on this operating system.
func here(m agent.Mode) error {
	if (m == agent.ModeWindows) != (runtime.GOOS == "windows") {
		return usageError("--mode %s does not work on %s", m, runtime.GOOS)
	}
	return nil
}

// given returns the data plane if it is known without examining the node: the configured one, or the system's only one. ok is
// false if there is a choice.
func (s *settings) given() (c choice, ok bool, err error) {
	switch {
	case s.mode != "auto" && s.mode != "":
		c = choice{mode: agent.Mode(s.mode), reason: "--mode " + s.mode}
	case runtime.GOOS == "windows":
		c = choice{mode: agent.ModeWindows, reason: "this is Windows"}
	default:
		return c, false, nil
	}
	return c, true, here(c.mode)
}

// decide decides on the data plane. It connects to the bridge where Open vSwitch is installed or asked for. The errors in absent are
// reasons to do without, unless --mode asks for it; every other error of connect is the caller's.
func (s *settings) decide(ctx context.Context, connect func() (*ovsdb.Client, error), absent ...error) (choice, error) {
	c, ok, err := s.given()
	if err != nil || ok && c.mode != agent.ModeOVS {
		return c, err
	}
	if dir, installed := s.ovsInstalled(); !ok && !installed {
		return s.withoutBridge(ctx, "there is no Open vSwitch here: nothing in "+dir), nil
	}
	db, err := connect()
	switch {
	case err == nil:
		return choice{mode: agent.ModeOVS, reason: fmt.Sprintf("%s answers and has bridge %s", s.OVSDB, s.Bridge), db: db}, nil
	case !ok && ctx.Err() == nil && slices.ContainsFunc(absent, func(a error) bool { return errors.Is(err, a) }):
		return s.withoutBridge(ctx, fmt.Sprintf("Open vSwitch is installed, but: %v", err)), nil
	}
	return choice{}, err
}

// choose decides on the data plane for a long run. If Open vSwitch is installed, it waits up to wait for the bridge. A bridge
// that exists but cannot be used is an error, never a reason for iptables.
func (s *settings) choose(ctx context.Context, wait time.Duration, log *slog.Logger) (choice, error) {
	if _, ok, _ := s.given(); !ok {
		if err := s.checkBridgeFlags(); err != nil {
			return choice{}, err
		}
	}
	connect := func() (*ovsdb.Client, error) { return s.awaitBridge(ctx, wait, log) }
	return s.decide(ctx, connect, ovsdb.ErrUnreachable, ovsdb.ErrNoBridge)
}

// chooseNow decides on the data plane for a command, without waiting. Where Open vSwitch is installed and does not
// answer, that is an error: what the agent does there depends on the answer.
func (s *settings) chooseNow(ctx context.Context) (c choice, sw *ovsdb.Switch, err error) {
	_, given, _ := s.given()
	last := s.LastModes()
	if !given && len(last) > 0 && (last[0] == agent.ModeNFTables || last[0] == agent.ModeIPTables) {
		c = choice{mode: last[0], reason: "the agent's choice"}
	} else {
		var absent []error
		if !s.meansBridge() {
			absent = append(absent, ovsdb.ErrNoBridge)
		}
		c, err = s.decide(ctx, func() (db *ovsdb.Client, err error) {
			db, sw, err = s.connectDB(ctx)
			return db, err
		}, absent...)
	}

	if _, told := s.cfg.explicit["mode"]; err == nil && !told { // with --mode auto, the flags are those of many nodes
		if err = s.cfg.checkMode(c.mode); err != nil {
			c.close()
		}
	}
	return c, sw, err
}

// withoutBridge decides between nftables and iptables, for the reason that there is no bridge.
func (s *settings) withoutBridge(ctx context.Context, reason string) choice {
	if why := s.WhyNotNFTables(ctx, serving.Everything); why != "" {
		return choice{mode: agent.ModeIPTables, reason: reason + "; not nftables: " + why}
	}
	return choice{mode: agent.ModeNFTables, reason: reason}
}

// bridgeFlags are flags that make sense only for a bridge.
var bridgeFlags = []string{"bridge", "configure-bridge", "gateway-mac", "openflow", "ports", "uplink-port"}

// checkBridgeFlags returns an error if the command line has flags for a bridge, but no --mode, on a node without Open vSwitch.
// Settings in a configuration file do not count, because many nodes may share the file.
func (s *settings) checkBridgeFlags() error {
	dir, installed := s.ovsInstalled()
	if _, told := s.cfg.explicit["mode"]; installed || told || s.cfg.origin["mode"] != "" {
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
	return fmt.Errorf("there is no Open vSwitch here (nothing in %s), but %s is for a bridge: install Open vSwitch, name its database with --ovsdb, "+
		"or choose: --mode iptables, or --mode auto for a bridge where there is one and nftables or iptables where there is none; nothing was changed", dir, strings.Join(given, ", "))
}

// modeChange returns a function that returns why nkp would now choose a bridge, or do without one, other than in c, for agent.Options;
// nil if --mode set it.
func (s *settings) modeChange(c choice) func(context.Context) string {
	switch {
	case s.mode != "auto":
		return nil
	case c.mode == agent.ModeOVS:
		return func(context.Context) string {
			if sw := c.db.Switch(); !sw.Exists {
				return fmt.Sprintf("bridge %s is gone: nkp would serve Services by nftables or iptables now%s", s.Bridge, agent.HowToChange)
			}
			return ""
		}
	case c.mode == agent.ModeIPTables || c.mode == agent.ModeNFTables:
		return func(ctx context.Context) string {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if _, installed := s.ovsInstalled(); installed {
				if db, _, err := s.connectDB(ctx); err == nil {
					db.Close()
					return fmt.Sprintf("bridge %s is here: nkp would serve Services in Open vSwitch now%s", s.Bridge, agent.HowToChange)
				}
			}
			return ""
		}
	}
	return nil
}

// ovsDir returns the directory of the database's socket; local is false for a database elsewhere.
func (s *settings) ovsDir() (dir string, local bool) {
	path, local := strings.CutPrefix(s.OVSDB, "unix:")
	return filepath.Dir(path), local
}

// ovsInstalled reports whether there is anything in the directory of the database's socket. An empty directory does not count,
// because kubelet makes one where a pod mounts it (deploy/kubernetes/auto). One that may not be read does, and so does a
// database elsewhere.
func (s *settings) ovsInstalled() (dir string, ok bool) {
	dir, local := s.ovsDir()
	if !local {
		return "", true
	}
	files, err := os.ReadDir(dir)
	return dir, len(files) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// meansBridge reports whether the command line names a bridge that has to exist: with --mode auto only where the last run had it.
func (s *settings) meansBridge() bool {
	_, named := s.cfg.explicit["bridge"]
	_, told := s.cfg.explicit["mode"]
	return named && (!told || slices.Contains(s.LastModes(), agent.ModeOVS))
}

// exists reports whether a file exists; if that cannot be determined, it counts as existing.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
