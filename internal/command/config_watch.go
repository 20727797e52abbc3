package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/internal/observe/notify"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// errRestart ends a run whose configuration file has changed. Main starts nkp again with the same arguments.
// The installed rules stay meanwhile, as in every restart (docs/decisions/configuration-changes.md).
var errRestart = fmt.Errorf("the configuration file has changed: %w", notify.ErrRestart)

// restartOr returns errRestart if the context was cancelled for a restart, else err.
func restartOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errRestart) {
		return cause
	}
	return err
}

// configWatch follows the configuration file of a run.
type configWatch struct {
	s      *settings
	events *apiserver.Recorder
	log    *slog.Logger

	mu      sync.Mutex // protects problem, which status reads
	problem string     // why the file as it is now is not in force
}

// run follows the file until the context ends. A valid file with a different configuration ends the run by
// calling restart; an invalid one changes only status.
func (w *configWatch) run(ctx context.Context, restart func(error)) {
	before := w.s.cfg.file
	config.Watch(ctx, before.Path, before, func(now *config.File, err error) {
		if err == nil && reflect.DeepEqual(now.KubeProxy, before.KubeProxy) &&
			reflect.DeepEqual(now.Nkp, before.Nkp) {
			if w.set("") {
				w.log.Info("the configuration file is valid again and matches the configuration in force",
					"file", before.Path)
			}
			return
		}

		if err == nil {
			err = w.s.validateFile(now)
		}

		if err != nil {
			text := fmt.Sprintf(
				"the configuration file has changed and cannot be used; what it said before stays in "+
					"force: %v",
				err)
			if w.set(text) {
				w.log.Error(text)
				w.events.Node(apiserver.EventWarning, "ConfigurationRejected", "Configure", text)
			}
			return
		}

		w.log.Info("the configuration file has changed: restarting nkp; Services are served meanwhile",
			"file", before.Path)
		restart(errRestart)
	})
}

// set records what is wrong, "" if nothing is, and reports whether that is new.
func (w *configWatch) set(problem string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.problem
	w.problem = problem
	return was != problem
}

// warnings returns the configuration's warnings, for agent.Options.
func (w *configWatch) warnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == "" {
		return w.s.cfg.warnings
	}
	return append([]string{w.problem}, w.s.cfg.warnings...)
}

// validateFile validates the command line's flags combined with another file.
func (s *settings) validateFile(file *config.File) error {
	fresh := newSettings()
	f := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.SetOutput(io.Discard) // warnings about flags were printed at the start
	fresh.runFlags(f)
	fresh.cfg.isRun, fresh.dir, fresh.ncpINI = true, s.dir, s.ncpINI
	if err := copyFlags(f, s.cfg.explicit); err != nil {
		return err
	}
	if err := fresh.combine(f, file); err != nil {
		return err
	}
	if err := fresh.cfg.explain(fresh.resolve()); err != nil {
		return err
	}
	if _, err := fresh.process.logger(nil); err != nil {
		return err
	}
	return fresh.needSource()
}

// copyFlags sets flags to the values that the command line has set for flags of the same names.
func copyFlags(f *pflag.FlagSet, explicit map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(explicit)) {
		if f.Lookup(name) != nil {
			errs = append(errs, f.Set(name, explicit[name]))
		}
	}
	return errors.Join(errs...)
}
