package xtables

// Transaction is input that iptables-restore reads while another transaction may still commit: reading is a third of its
// work. It must end with Commit or Abort.
type Transaction interface {
	// Commit commits it and waits for that; the error is Tables.Restore's.
	Commit() error
	// Abort ends it with nothing committed.
	Abort()
}
