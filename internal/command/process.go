package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/windows/service"
)

// process are the settings of `nkp run` that concern the process, not what it programs.
type process struct {
	wait        time.Duration // for the bridge
	logLevel    string
	logFormat   string
	verbosity   uint32
	asService   bool
	oomScoreAdj int
	// Actions of kube-proxy's that replace a run.
	initOnly, cleanup bool
	version           string
	// Ports of kube-proxy's deprecated flags.
	healthzPort, metricsPort int
}

// processFlags defines the flags about the process: nkp's own, and kube-proxy's.
func (s *settings) processFlags(f *pflag.FlagSet) {
	p := &s.process

	f.Var(socketFlag(&s.Socket), "socket", socketUsage)
	f.BoolVar(&s.ConfigureBridge, "configure-bridge", false, "enable OpenFlow15 on the bridge if it is not")
	f.DurationVar(&p.wait, "ovs-wait", time.Minute, "how long to wait for the bridge at the start")
	f.DurationVar(&s.AuditPeriod, "audit-period", s.AuditPeriod,
		"how often the whole switch is read back and compared")
	f.BoolVar(&s.AllowStateful, "allow-stateful-policies", false,
		"start where flows of others use conntrack on packets that nkp passes on, without a warning: "+
			bridge.Consequence)

	f.StringVar(&p.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.cfg.writeTo, "write-config-to", "",
		"write the configuration that is in force to this file, and end")
	f.StringVar(&p.logFormat, "logging-format", "text", "text or json")
	f.Uint32VarP(&p.verbosity, "v", "v", 0,
		"kube-proxy's log verbosity: 4 and more is --log-level debug, unless that is given")

	f.BoolVar(&p.asService, "windows-service", false,
		"run under the Windows service manager, and log to the event log")
	f.IntVar(&p.oomScoreAdj, "oom-score-adj", -999,
		"how willing the kernel is to kill nkp when memory runs out, -1000 to 1000")
	f.BoolVar(&p.initOnly, "init-only", false,
		"only set what needs all privileges (the conntrack settings), and end")
	f.BoolVar(&p.cleanup, "cleanup", false, "do as nkp cleanup does, and end")
	f.StringVar(&p.version, "version", "false", "print the version, and end")
	f.Lookup("version").NoOptDefVal = "true"

	f.IntVar(&p.healthzPort, "healthz-port", config.HealthzPort,
		"port for --healthz-bind-address where that has none; 0: no such server")
	f.IntVar(&p.metricsPort, "metrics-port", config.MetricsPort,
		"port for --metrics-bind-address where that has none; 0: no such server")
	_ = f.MarkDeprecated("healthz-port", "--healthz-bind-address takes the port, too")
	_ = f.MarkDeprecated("metrics-port", "--metrics-bind-address takes the port, too")
}

// unusedFlags defines kube-proxy's flags that have no effect here, so that a kube-proxy command line works
// unchanged. Help does not list them; docs/configuration.md does, with the reason.
func unusedFlags(f *pflag.FlagSet) {
	add := func(name, kind, usage string) {
		if f.Lookup(name) != nil {
			return
		}
		f.Var(&unusedValue{kind: kind}, name, usage)
		f.Lookup(name).Hidden = true
		if kind == "bool" {
			f.Lookup(name).NoOptDefVal = "true"
		}
	}

	for _, name := range []string{"vmodule", "boot-id-file", "machine-id-file"} {
		add(name, "string", "no effect")
	}
	for _, format := range []string{"text", "json"} {
		add("log-"+format+"-split-stream", "bool", "no effect: everything goes to standard error")
		add("log-"+format+"-info-buffer-size", "quantity", "no effect: nothing is held back")
	}
	for _, field := range config.KubeProxyFields() {
		switch {
		case field.Flag == "" || field.Flag == field.Sets:
		case field.Flag == "proxy-mode":
			add(field.Flag, field.Kind(), "never chooses the data plane of nkp; --mode does")
		case field.Sets != "":
			add(field.Flag, field.Kind(), "with --proxy-mode ipvs only: the same as --"+field.Sets)
		default:
			add(field.Flag, field.Kind(), strings.ReplaceAll(field.Note, "`", ""))
		}
	}
}

// unusedValue is the value of a flag that has no effect.
type unusedValue struct{ kind, text string }

// Type is part of pflag.Value.
func (u *unusedValue) Type() string { return u.kind }

// String is part of pflag.Value.
func (u *unusedValue) String() string { return u.text }

// Set is part of pflag.Value.
func (u *unusedValue) Set(text string) (err error) {
	switch u.kind {
	case "duration":
		_, err = time.ParseDuration(text)
	case "bool":
		var on bool
		on, err = strconv.ParseBool(text)
		text = strconv.FormatBool(on)
	}
	u.text = text
	return err
}

// level returns the level that is logged from on.
func (p *process) level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(p.logLevel)); err != nil {
		return l, checkEnum("log-level", p.logLevel)
	}
	return l, nil
}

// logger returns a logger that writes to w.
func (p *process) logger(w io.Writer) (*slog.Logger, error) {
	level, err := p.level()
	if err != nil {
		return nil, err
	}
	o := &slog.HandlerOptions{Level: level}
	if p.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), checkEnum("logging-format", p.logFormat)
}

// start runs nkp, or executes the action that a flag of kube-proxy's requests instead.
func (s *settings) start(ctx context.Context, stdout, stderr io.Writer) error {
	p := &s.process
	switch {
	case p.version != "false":
		return printVersion(stdout)
	case s.cfg.writeTo != "":
		return s.writeConfig(stderr)
	case p.cleanup:
		return s.runCleanup(ctx, stdout)
	case p.asService:
		return s.runAsService()
	}

	s.recentLog = &agent.RecentLog{}
	log, err := p.logger(io.MultiWriter(stderr, s.recentLog))
	if err != nil {
		return err
	}
	s.cfg.report(log)

	if p.initOnly {
		if failed := s.ApplySysctls(log); len(failed) > 0 {
			return fmt.Errorf("--init-only: %s", strings.Join(failed, "; "))
		}
		return nil
	}

	if err := setOOMScoreAdj(p.oomScoreAdj); err != nil {
		level := slog.LevelDebug // it is only a default
		if s.cfg.isSet("oom-score-adj") {
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "cannot set oom_score_adj of this process", "error", err)
	}

	return s.run(ctx, p.wait, log)
}

// runAsService is start for a process that the Windows service manager has started.
func (s *settings) runAsService() error {
	level, err := s.process.level()
	if err != nil {
		return err
	}
	events, err := service.EventLog(level)
	if err != nil {
		return err
	}
	log := slog.New(events)
	s.cfg.report(log)
	return service.Run(func(ctx context.Context) error { return s.run(ctx, s.process.wait, log) })
}

// writeConfig is --write-config-to.
func (s *settings) writeConfig(stderr io.Writer) error {
	s.cfg.print(stderr)
	if errs := config.Validate(s.cfg.kubeProxy); len(errs) > 0 {
		return fmt.Errorf("the flags cannot be expressed as a KubeProxyConfiguration: %w", errs.ToAggregate())
	}
	if err := config.Write(s.cfg.writeTo, s.cfg.kubeProxy, s.cfg.nkp); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stderr, "nkp: wrote the configuration to %s\n", s.cfg.writeTo)
	return err
}
