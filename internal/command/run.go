package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/ovsdb"
)

func newRun() *cobra.Command {
	s := newSettings()
	s.dir = defaultDir
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve this node's Services (the default command)",
		Long: `run follows Services and EndpointSlices and keeps the bridge in step, until it is stopped. What it installed stays
on the switch: Services are served while nkp is down, and a new start takes over what it finds.

Services come from an API server (--kubeconfig, --master, --ncp-ini, or the pod's service account), where nkp
lists and watches Services, EndpointSlices, ServiceCIDRs and this node's Node, as the role
system:node-proxier may; or from --manifests. Without any of these, nkp takes what there is in /etc/nkp:
config.yaml as --config and ncp.ini as --ncp-ini; and kubeconfig or, without that, manifests, unless config.yaml
says where Services come from. While the API server is unreachable, the last known state stays in force.

Every kube-proxy flag is accepted; flags without effect in nkp are not listed here, and a warning names them. --config
accepts kube-proxy's configuration file unchanged, and nkp's own settings in addition (` + configurationDoc + `).`,
		Example: `  nkp run --kubeconfig /etc/nkp/kubeconfig --uplink-port eth1 --cluster-cidr 10.0.0.0/16
  nkp run --config /var/lib/kube-proxy/config.conf --uplink-port eth1
  nkp run --ncp-ini /etc/nsx-ujo/ncp.ini
  nkp run --manifests services.yaml
  nkp run --manifests /etc/nkp/services --bridge br-int --uplink-port eth1 --cluster-cidr 10.0.0.0/16`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.prepare(cmd); err != nil {
				return err
			}
			return s.start(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.runFlags(cmd.Flags())
	return cmd
}

func (s *settings) run(ctx context.Context, wait time.Duration, log *slog.Logger) error {
	if s.AuditPeriod <= 0 {
		return usageError("--audit-period must be above 0")
	}
	if err := s.cfg.checkMode(mode.Possible()...); err != nil {
		return err
	}

	louder := newVerbosity(log.Handler())
	log = slog.New(louder)

	if err := agent.CheckAlone(s.Socket); err != nil {
		return err
	}
	source, kind, err := s.source()
	if err != nil {
		return err
	}
	events, err := s.recorder(log)
	if err != nil {
		return err
	}
	reviewer, err := s.reviewer(log)
	if err != nil {
		return err
	}

	redirectKlog(log)
	unknown := maps.Clone(s.gates)
	if delete(unknown, config.GateExternalIPs); len(unknown) > 0 {
		log.Warn("feature gates that nkp does not know have no effect",
			"gates", slices.Sorted(maps.Keys(unknown)))
	}

	agent.SaveMemory()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := &configWatch{s: s, events: events, log: log}
	if s.cfg.file != nil {
		go watch.run(ctx, cancel)
	}

	s.waiting = agent.AnswerWaiting(s.Socket, log)
	c, err := s.choose(ctx, wait, log)
	s.waiting.Stop()
	if err != nil {
		return restartOr(ctx, err)
	}

	defer c.close()
	log.Info("serving Services", "mode", c.Mode, "reason", c.Reason, "node", s.NodeName)
	if c.db != nil && !kernelTracks(c.db.Switch().DatapathType) {
		s.Conntrack = sysctl.Settings{}
	}

	a, err := agent.New(agent.Options{
		Settings: s.Settings, Mode: c.Mode, Reason: c.Reason, Auto: s.mode == mode.Auto, Source: source,
		Kind:   kind,
		Events: events, Reviewer: reviewer, DB: c.db,
		SetVerbosity: louder.set, LogLevel: louder.from, RecentLog: s.recentLog, Notes: watch.warnings,
		Log:     log,
		Configz: s.configz,
	})
	if err != nil {
		return err
	}

	return restartOr(ctx, a.Run(ctx))
}

// kernelTracks reports whether the kernel's conntrack tracks the connections of a datapath.
func kernelTracks(datapathType string) bool { return datapathType == "" || datapathType == "system" }

// recorder returns a Recorder that writes Events to the API server if Services come from one, else to the
// log.
func (s *settings) recorder(log *slog.Logger) (*apiserver.Recorder, error) {
	if s.manifests != "" {
		return apiserver.NewLogRecorder(s.NodeName, log), nil
	}
	return apiserver.NewRecorder(s.apiOptions(), log)
}

// reviewer returns what decides who may read the metrics; nil: everyone who reaches their address.
func (s *settings) reviewer(log *slog.Logger) (*apiserver.Reviewer, error) {
	switch {
	case !s.Metrics.Authorization:
		return nil, nil
	case s.manifests != "":
		return nil, usageError(
			"--metrics-authorization asks the API server about clients, and with --manifests there is none")
	}
	return apiserver.NewReviewer(s.apiOptions(), log)
}

// awaitBridge connects to the database and waits up to wait for the bridge. It then checks that nkp can use
// the bridge, and enables OpenFlow15 if it may.
func (s *settings) awaitBridge(
	ctx context.Context, wait time.Duration, log *slog.Logger,
) (*ovsdb.Client, error) {
	deadline, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	db, err := s.awaitDB(deadline, log)
	if err != nil {
		return nil, err
	}

	sw := db.Switch()
	if !sw.Exists {
		log.Info("waiting for the bridge", "bridge", s.Bridge, "atMost", wait)
		s.waiting.Say("bridge " + s.Bridge)
		if sw, err = db.AwaitBridge(deadline); err != nil {
			db.Close()
			return nil, fmt.Errorf("waited %v (--ovs-wait): %w", wait, sw.Check())
		}
	}

	err = sw.Check()
	if err == nil && s.NodeMAC.IsZero() {
		s.awaitReport(ctx, db)
	}

	if s.ConfigureBridge && errors.Is(err, ovsdb.ErrNoOpenFlow15) {
		log.Info("enabling OpenFlow15", "bridge", s.Bridge)
		err = db.EnableOpenFlow15(deadline)
	}

	if err != nil {
		db.Close()
		return nil, err
	}

	if _, err := db.Switch().Uplink(s.Uplink); err != nil { // status has it, too, as long as it is so
		log.Warn(err.Error())
	}
	return db, nil
}

// reportLimit bounds the wait of awaitReport. ovs-vswitchd tries to reconnect to its database every 8 s at
// least (lib/reconnect.c).
const reportLimit = 10 * time.Second

// awaitReport waits until ovs-vswitchd has reported the bridge's MAC to the database, which forgets it when
// it restarts. Without it nkp cannot tell whether the node's address is on the bridge, and what serves the
// node's own traffic is chosen once, at the start.
func (s *settings) awaitReport(ctx context.Context, db *ovsdb.Client) {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	for logged := false; ; logged = true {
		if sw := db.Switch(); len(sw.LocalMAC) > 0 || !sw.Exists {
			return
		}
		if !logged {
			s.waiting.Say("ovs-vswitchd, which has not reported bridge " + s.Bridge + " yet,")
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// awaitDB connects to the database, and tries until the context ends.
func (s *settings) awaitDB(ctx context.Context, log *slog.Logger) (*ovsdb.Client, error) {
	opts, err := s.DatabaseOptions()
	if err != nil {
		return nil, err
	}

	s.waiting.Say("the database of Open vSwitch, " + s.OVSDB)

	for logged := false; ; logged = true {
		db, err := ovsdb.Connect(ctx, opts)
		if err == nil || !errors.Is(err, ovsdb.ErrUnreachable) {
			return db, err
		}

		path, local := strings.CutPrefix(s.OVSDB, "unix:")
		dir := filepath.Dir(path)
		if _, missing := os.Stat(dir); local && errors.Is(missing, fs.ErrNotExist) {
			return nil, fmt.Errorf(
				"%w; there is no directory %s: is Open vSwitch installed here? name its database with "+
					"--ovsdb",
				err, dir)
		}

		if !logged {
			log.Info("waiting for the database of Open vSwitch", "ovsdb", s.OVSDB, "because", err)
		}

		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// configz returns the configurations in force by their group.
func (s *settings) configz() map[string]any {
	return map[string]any{config.KubeProxyGroup: s.cfg.kubeProxy, config.Group: s.cfg.nkp}
}
