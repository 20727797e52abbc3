package iptables

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
)

// readAhead is how many transactions iptables-restore parses while another commits. One would suffice if a
// processor were always free for it; commits must not wait for work that could have been done before.
const readAhead = 2

// transaction is input that iptables-restore may parse before its turn comes. Transactions commit one after
// the other, because a second one, prepared by the kernel while another commits, would have to start over.
type transaction struct {
	*input
	begun restore.Transaction // nil: not begun
}

// begin has iptables-restore read the input, unless it does already or the input is empty.
func (x *transaction) begin(ctx context.Context, t tables) (err error) {
	if x.begun == nil && !x.empty() {
		x.begun, err = t.Begin(ctx, x.bytes())
	}
	return err
}

// abandon aborts a transaction whose turn has not come, if it was begun.
func (x *transaction) abandon() {
	if x.begun != nil {
		x.begun.Abort()
		x.begun = nil
	}
}

// commitMeanwhile commits a transaction, and calls meanwhile during that.
func (w *worker) commitMeanwhile(ctx context.Context, x *transaction, meanwhile func()) error {
	if x.empty() {
		meanwhile()
		return nil
	}
	if err := x.begin(ctx, w.tables); err != nil {
		return err
	}
	tx, start, result := x.begun, time.Now(), make(chan error, 1)
	x.begun = nil
	go func() { result <- tx.Commit() }()
	meanwhile()
	err := <-result // it ends here
	return w.committed(x.input, time.Since(start), err)
}
