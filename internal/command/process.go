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

// runFlags defines all flags of `nkp run`: its own and every flag of kube-proxy's.
func (s *settings) runFlags(f *pflag.FlagSet) {
	s.cfg.isRun = true
	s.configFlag(f)
	s.sourceFlags(f)
	s.apiFlags(f)
	s.pipelineFlags(f)
	s.layoutFlags(f)
	s.switchFlags(f, defaultOVSDB)
	s.socketFlag(f)
	s.healthFlags(f)
	s.metricsFlags(f)
	s.conntrackFlags(f)
	defer inGroup(f, groupProcess)()
	p := &s.process
	f.BoolVar(&s.ConfigureBridge, "configure-bridge", false, "enable OpenFlow15 on the bridge if it is not")
	f.DurationVar(&p.wait, "ovs-wait", time.Minute, "how long to wait for the bridge at the start")
	f.DurationVar(&s.AuditPeriod, "audit-period", s.AuditPeriod, "how often the whole switch is read back and compared")
	f.StringVar(&p.logLevel, "log-level", "info", "debug, info, warn or error")
	s.kubeProxyFlags(f) // last, because it defines the flags not defined so far, without effect
}

// kubeProxyFlags defines kube-proxy's flags that concern the process, and those that have no effect here, so that a
// kube-proxy command line works unchanged.
func (s *settings) kubeProxyFlags(f *pflag.FlagSet) {
	p := &s.process
	f.StringVar(&s.cfg.writeTo, "write-config-to", "", "write the configuration that is in force to this file, and end")
	f.StringVar(&p.logFormat, "logging-format", "text", "text or json")
	f.Uint32VarP(&p.verbosity, "v", "v", 0, "kube-proxy's log verbosity: 4 and more is --log-level debug, unless that is given")
	f.BoolVar(&p.asService, "windows-service", false, "run under the Windows service manager, and log to the event log")
	f.IntVar(&p.oomScoreAdj, "oom-score-adj", -999, "how willing the kernel is to kill nkp when memory runs out, -1000 to 1000")
	f.BoolVar(&p.initOnly, "init-only", false, "only set what needs all privileges (the conntrack settings), and end")
	f.BoolVar(&p.cleanup, "cleanup", false, "do as nkp cleanup does, and end")
	f.StringVar(&p.version, "version", "false", "print the version, and end")
	f.Lookup("version").NoOptDefVal = "true"
	f.IntVar(&p.healthzPort, "healthz-port", config.HealthzPort, "port for --healthz-bind-address where that has none; 0: no such server")
	f.IntVar(&p.metricsPort, "metrics-port", config.MetricsPort, "port for --metrics-bind-address where that has none; 0: no such server")
	_ = f.MarkDeprecated("healthz-port", "--healthz-bind-address takes the port, too")
	_ = f.MarkDeprecated("metrics-port", "--metrics-bind-address takes the port, too")
	for _, x := range withoutEffect() {
		if f.Lookup(x.name) == nil {
			f.Var(&unusedValue{kind: x.kind}, x.name, x.usage)
			f.Lookup(x.name).Hidden = true // docs/configuration.md lists them
			if x.kind == "bool" {
				f.Lookup(x.name).NoOptDefVal = "true"
			}
		}
	}
}

// unusedFlag is a flag of kube-proxy's that has no effect.
type unusedFlag struct{ name, kind, usage string }

// withoutEffect lists kube-proxy's flags that have no effect here, with the reason why.
func withoutEffect() []unusedFlag {
	const prefix = "no effect"
	all := []unusedFlag{
		{"vmodule", "string", prefix},
		{"boot-id-file", "string", prefix},
		{"machine-id-file", "string", prefix},
		{"log-text-split-stream", "bool", prefix + ": everything goes to standard error"},
		{"log-json-split-stream", "bool", prefix + ": everything goes to standard error"},
		{"log-text-info-buffer-size", "quantity", prefix + ": nothing is held back"},
		{"log-json-info-buffer-size", "quantity", prefix + ": nothing is held back"},
	}
	for _, field := range config.KubeProxyFields() {
		if field.Flag == "" || field.Sets != "" && field.Sets == field.Flag {
			continue
		}
		usage := strings.ReplaceAll(field.Note, "`", "")
		switch {
		case field.Flag == "proxy-mode":
			usage = "never chooses the data plane of nkp; --mode does"
		case field.Sets != "":
			usage = "with --proxy-mode ipvs only: the same as --" + field.Sets
		}
		all = append(all, unusedFlag{field.Flag, field.Kind(), usage})
	}
	return all
}

// unusedValue is the value of a flag that has no effect.
type unusedValue struct{ kind, text string }

func (u *unusedValue) Type() string   { return u.kind }
func (u *unusedValue) String() string { return u.text }
func (u *unusedValue) Set(text string) (err error) {
	switch u.kind {
	case "duration":
		_, err = time.ParseDuration(text)
	case "bool":
		_, err = strconv.ParseBool(text)
	case "number":
		_, err = strconv.ParseInt(text, 0, 64)
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
	log, err := p.logger(stderr)
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
		if s.cfg.says("oom-score-adj") {
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
	events, err := service.EventLog(service.Name, level)
	if err != nil {
		return err
	}
	log := slog.New(events)
	s.cfg.report(log)
	return service.Run(service.Name, func(ctx context.Context) error { return s.run(ctx, s.process.wait, log) })
}

// writeConfig is --write-config-to.
func (s *settings) writeConfig(stderr io.Writer) error {
	for _, text := range s.cfg.warnings {
		fmt.Fprintf(stderr, "nkp: warning: %s\n", text)
	}
	if errs := config.Validate(s.cfg.kubeProxy); len(errs) > 0 {
		return fmt.Errorf("the flags cannot be expressed as a KubeProxyConfiguration: %w", errs.ToAggregate())
	}
	if err := config.Write(s.cfg.writeTo, s.cfg.kubeProxy, s.cfg.nkp); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stderr, "nkp: wrote the configuration to %s\n", s.cfg.writeTo)
	return err
}
