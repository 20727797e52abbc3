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
	"github.com/nkp-proxy/nkp/internal/notify"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// errRestart ends a run whose configuration file has changed. Main starts nkp again with the same arguments: what is
// installed stays on the way, as in every restart (docs/decisions/0007).
var errRestart = fmt.Errorf("the configuration file has changed: %w", notify.ErrRestart)

// restartOr returns the reason to start again, if there is one, in place of an error.
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

// run ends with the context. A good file that says something else ends the run, by restart; a bad one changes nothing but
// what status says.
func (w *configWatch) run(ctx context.Context, restart func(error)) {
	before := w.s.cfg.file
	config.Watch(ctx, before.Path, before, func(now *config.File, err error) {
		if err == nil && reflect.DeepEqual(now.KubeProxy, before.KubeProxy) && reflect.DeepEqual(now.Nkp, before.Nkp) {
			if w.set("") {
				w.log.Info("the configuration file is in order again; it says what is in force", "file", before.Path)
			}
			return
		}
		if err == nil {
			err = w.s.try(now)
		}
		if err != nil {
			text := fmt.Sprintf("the configuration file has changed and cannot be used; what it said before stays in force: %v", err)
			if w.set(text) {
				w.log.Error(text)
				w.events.Node(apiserver.EventWarning, "ConfigurationRejected", "Configure", text)
			}
			return
		}
		w.log.Info("the configuration file has changed: starting again; Services are served all the time", "file", before.Path)
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

// warnings is for agent.Options.
func (w *configWatch) warnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == "" {
		return w.s.cfg.warnings
	}
	return append([]string{w.problem}, w.s.cfg.warnings...)
}

// try reports what is wrong with the command line's flags and another file.
func (s *settings) try(file *config.File) error {
	fresh := newSettings()
	f := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.SetOutput(io.Discard) // what there is to say about flags was said at the start
	fresh.runFlags(f)
	fresh.cfg.isRun = true
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

// copyFlags returns flags the values that the command line has given others of the same names.
func copyFlags(f *pflag.FlagSet, explicit map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(explicit)) {
		if f.Lookup(name) != nil {
			errs = append(errs, f.Set(name, explicit[name]))
		}
	}
	return errors.Join(errs...)
}
