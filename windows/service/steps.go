package service

import (
	"fmt"
	"io"
)

// step is one change to the system. undo, if not nil, reverses it; it runs also after do has failed, so that half a change is reversed.
type step struct {
	text string // in the imperative
	do   func() error
	undo func() error
}

// perform takes the steps in order. If one fails, it reverses that and the earlier ones, last first, and returns all errors. With dryRun
// it prints the steps only.
func perform(out io.Writer, dryRun bool, steps []step) error {
	for i, s := range steps {
		fmt.Fprintln(out, s.text)
		if dryRun {
			continue
		}
		err := s.do()
		if err == nil {
			continue
		}
		err = fmt.Errorf("cannot %s: %w", s.text, err)
		for ; i >= 0; i-- {
			if steps[i].undo == nil {
				continue
			}
			fmt.Fprintln(out, "undo:", steps[i].text)
			if failed := steps[i].undo(); failed != nil {
				err = joined(err, fmt.Errorf("cannot undo %q: %w", steps[i].text, failed))
			}
		}
		return err
	}
	return nil
}

// joined is errors.Join with the errors in one line.
func joined(errs ...error) (all error) {
	for _, err := range errs {
		switch {
		case all == nil:
			all = err
		case err != nil:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}
