package command

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/internal/mode"
)

// configuration is the combination of the configuration file and the flags.
type configuration struct {
	path    string // --config
	writeTo string // --write-config-to

	file      *config.File // nil: there is none
	kubeProxy *config.KubeProxy
	nkp       *config.NkpConfiguration
	warnings  []string
	notes     []string          // what is worth a line in the log, and no warning
	explicit  map[string]string // flag -> its value on the command line
	origin    map[string]string // flag -> file and field that set it, for messages
	isRun     bool
	flags     *pflag.FlagSet // of the command
}

// configurationDoc is where the configuration is documented: a package does not install docs/.
const configurationDoc = "https://github.com/nkp-proxy/nkp/blob/main/docs/configuration.md"

// configure loads the configuration file and combines it with the command's flags. It prints warnings to
// standard error, except for run, which logs them later.
func (s *settings) configure(cmd *cobra.Command) error {
	s.installedConfiguration()
	var file *config.File
	if s.cfg.path != "" {
		var err error
		if file, err = config.Load(s.cfg.path); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	if err := s.combine(cmd.Flags(), file); err != nil {
		return err
	}
	if !s.cfg.isRun {
		s.cfg.print(cmd.ErrOrStderr())
	}
	return nil
}

// prepare configures the command and validates the combined settings.
func (s *settings) prepare(cmd *cobra.Command) error {
	if err := s.configure(cmd); err != nil {
		return err
	}
	return s.cfg.explain(s.resolve())
}

// combine applies a file, nil if there is none, to the flags.
//
// As in kube-proxy, a KubeProxyConfiguration replaces kube-proxy's flags, except those in flagWins. nkp's own
// flags override NkpConfiguration.
func (s *settings) combine(f *pflag.FlagSet, file *config.File) error {
	c := &s.cfg
	c.file, c.explicit, c.origin, c.flags = file, map[string]string{}, map[string]string{}, f
	c.warnings, c.notes = nil, nil
	f.Visit(func(flag *pflag.Flag) { c.explicit[flag.Name] = flag.Value.String() })

	if file != nil {
		c.warnings = append(c.warnings, file.Warnings...)
		if err := c.applyNkp(f, file); err != nil {
			return err
		}
	}

	if err := s.kubeProxyInForce(f); err != nil {
		return err
	}
	if err := s.applyKubeProxy(f); err != nil {
		return err
	}
	if _, named := c.explicit["ncp-ini"]; !named {
		s.installedSource() // before the API server of an ncp.ini beside it
	}
	if err := s.applyNCP(f); err != nil {
		return err
	}
	s.installedSource()

	c.warnUnused(f)

	if slices.Contains(append(mode.OnLinux(), mode.Windows), s.mode) {
		if _, told := c.explicit["mode"]; told {
			if err := c.checkMode(s.mode); err != nil {
				return err
			}
		}
		if own, kubeProxy := c.withoutEffect([]mode.Mode{s.mode}); len(own)+len(kubeProxy) > 0 {
			c.warnings = append(c.warnings,
				fmt.Sprintf("flags that have no effect in mode %s: %s",
					s.mode, strings.Join(append(own, kubeProxy...), ", ")))
		}
	}

	c.nkp = config.NewNkpConfiguration()
	for _, field := range config.NkpFields() {
		if flag := f.Lookup(field.Flag); flag != nil && flag.Value.String() != "" {
			if err := field.SetText(c.nkp, flag.Value.String()); err != nil {
				return fmt.Errorf("--%s: %w", flag.Name, err)
			}
		}
	}

	if s.process.verbosity >= 4 && !c.isSet("log-level") {
		s.process.logLevel = "debug"
	}

	return nil
}

// isSet reports whether the command line or the file set the flag.
func (c *configuration) isSet(flag string) bool {
	_, explicit := c.explicit[flag]
	return explicit || c.origin[flag] != ""
}

// applyNkp sets the flags from the fields of NkpConfiguration, except those set on the command line.
func (c *configuration) applyNkp(f *pflag.FlagSet, file *config.File) error {
	if file.Nkp == nil {
		return nil
	}
	for _, field := range config.NkpFields() {
		text, set := field.Text(file.Nkp)
		flag := f.Lookup(field.Flag)
		if _, explicit := c.explicit[field.Flag]; !set || flag == nil || explicit {
			continue
		}
		where := c.fileField(config.Kind + "." + field.Path)
		if err := flag.Value.Set(text); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		c.origin[field.Flag] = where
	}
	return nil
}

// explain returns err prefixed with the field of the file that set the flag which err names, if any.
func (c *configuration) explain(err error) error {
	if err == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.origin)) {
		if strings.Contains(err.Error()+" ", "--"+name+" ") || strings.Contains(err.Error(), "--"+name+":") {
			return &exitError{exitFailure, fmt.Errorf("%s: %w", c.origin[name], err)}
		}
	}
	return err
}

// fileField names a field of the configuration file in an error.
func (c *configuration) fileField(path string) string {
	return "--config: " + c.file.Path + ": " + path
}

// print writes the notes and the warnings to w, one per line.
func (c *configuration) print(w io.Writer) {
	for _, text := range c.notes {
		fmt.Fprintf(w, "nkp: %s\n", text)
	}
	for _, text := range c.warnings {
		fmt.Fprintf(w, "nkp: warning: %s\n", text)
	}
}

// report logs the notes and the warnings.
func (c *configuration) report(log *slog.Logger) {
	for _, text := range c.notes {
		log.Info(text)
	}
	for _, text := range c.warnings {
		log.Warn(text)
	}
}
