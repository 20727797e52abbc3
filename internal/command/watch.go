package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
)

// watch is the flags --watch and --interval of a command that can repeat what it prints.
type watch struct {
	on       bool
	interval time.Duration
}

// minInterval is the shortest --interval: counters are no newer.
const minInterval = time.Second

func (v *watch) flags(f *pflag.FlagSet, usage string) {
	f.BoolVarP(&v.on, "watch", "w", false, usage+"; with -o json or yaml one document for each refresh")
	f.DurationVar(&v.interval, "interval", 2*time.Second,
		"time between two refreshes of --watch; at least 1s, as counters are no newer")
}

func (v *watch) check() error {
	if v.interval < minInterval {
		return usageError("--interval %v is less than 1s: counters are no newer than that", v.interval)
	}
	return nil
}

// follow prints what ask writes, every interval until the context ends, which is no error. A terminal shows
// the newest only. Elsewhere each follows an empty line; of JSON and YAML it is a document. width is that of
// the terminal, 0 elsewhere. An error ends it the first time, because of wrong usage or an agent that does
// not run. Later it is printed, except among documents, because nkp may be restarting.
func (v *watch) follow(
	ctx context.Context, w io.Writer, o *output, ask func(w io.Writer, width int) error,
) error {
	tick := time.NewTicker(v.interval)
	defer tick.Stop()
	redraw := redraws(w) && !o.data()

	var last []byte
	for first := true; ; first = false {
		width, height := 0, 0
		if redraw {
			width, height, _ = terminalSize(w)
		}

		var b bytes.Buffer
		switch err := ask(&b, width); {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			b.Reset()
			fmt.Fprintf(&b, "%s: %v\n", time.Now().Format(time.TimeOnly), err)
			if redraw {
				b.Write(last)
			}
			if o.data() {
				b.Reset() // an error is no document
			}
		default:
			last = b.Bytes()
		}

		text := b.Bytes()
		switch {
		case redraw:
			text = frame(b.String(), width, height)
			if first {
				text = append([]byte(clearScreen), text...)
			}
		case len(text) > 0 && o.format == "yaml":
			text = append([]byte("---\n"), text...)
		case len(text) > 0 && !o.data():
			text = append([]byte("\n"), text...)
		}

		if _, err := w.Write(text); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
