package restore

// Transaction is input that iptables-restore reads while another transaction may still commit: reading is a
// quarter of its work. It must end with Commit or Abort.
type Transaction interface {
	// Commit commits the transaction and waits for its end. Its errors are those of Tables.Restore.
	Commit() error
	// Abort ends the transaction without committing anything.
	Abort()
}
