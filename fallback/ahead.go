package fallback

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
)

// readAhead is how many transactions iptables-restore reads while another commits. One would do if there were always a processor
// for it; commits must not wait for what could have been done before.
const readAhead = 2

// transaction is one that iptables-restore may read before its turn comes. Transactions commit one after the other: a second
// one, prepared by the kernel while another commits, would have to start over.
type transaction struct {
	*input
	begun xtables.Transaction // it is being read
}

// begin lets iptables-restore read the input, if it does not yet.
func (x *transaction) begin(ctx context.Context, t tables) (err error) {
	if x.begun == nil && !x.empty() {
		x.begun, err = t.Begin(ctx, x.bytes())
	}
	return err
}

// abandon forgets a transaction whose turn has not come.
func (x *transaction) abandon() {
	if x.begun != nil {
		x.begun.Abort()
		x.begun = nil
	}
}

// commitMeanwhile commits a transaction, and does something useful while it does.
func (k *committer) commitMeanwhile(ctx context.Context, x *transaction, meanwhile func()) error {
	if x.empty() {
		meanwhile()
		return nil
	}
	if err := x.begin(ctx, k.tables); err != nil {
		return err
	}
	tx, start, result := x.begun, time.Now(), make(chan error, 1)
	x.begun = nil
	go func() { result <- tx.Commit() }()
	meanwhile()
	err := <-result // it ends here
	return k.committed(x.input, time.Since(start), err)
}
