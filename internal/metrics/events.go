package metrics

import (
	"strconv"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Synced tells that a sync of the data plane went through in some families; full: it began with reading everything back.
func (m *Metrics) Synced(families []k8s.Family, full bool, took time.Duration) {
	kind := syncPartialDuration
	if full {
		kind = syncFullDuration
	}
	now := unix(m.opts.Clock())
	for _, f := range families {
		m.observe(syncDuration, took, f.String())
		m.observe(kind, took, f.String())
		m.set(syncLast, now, f.String())
	}
}

// Transaction is what happened in one transaction with the switch.
type Transaction struct {
	Families      []k8s.Family // that it touches
	Full          bool         // it began with reading everything back
	Flows, Groups int          // set or deleted
	Refused       int          // objects; nothing is installed then
	Failed        bool         // the channel was lost
	Took          time.Duration
}

// Transaction counts a transaction with the switch.
func (m *Metrics) Transaction(t Transaction) {
	switch {
	case t.Refused > 0:
		m.count(flowTx, 1, "refused")
		m.count(refusedObjects, t.Refused)
	case t.Failed:
		m.count(flowTx, 1, "failed")
	default:
		m.count(flowTx, 1, "ok")
		m.count(flowTxObjects, t.Flows, "flow")
		m.count(flowTxObjects, t.Groups, "group")
		m.observe(flowTxTime, t.Took)
		m.Synced(t.Families, t.Full, t.Took)
	}
}

// Restore counts a run of iptables-restore for one table; err is why it did not go through.
func (m *Metrics) Restore(backend string, f k8s.Family, table string, rules int, took time.Duration, err error) {
	if err != nil {
		m.count(restores, 1, backend, f.String(), "failed")
		m.count(iptablesFailures, 1, f.String())
		return
	}
	m.count(restores, 1, backend, f.String(), "ok")
	m.observe(restoreTime, took, backend, f.String())
	m.count(rulesWritten, rules, table, f.String())
	m.set(iptablesLast, float64(rules), table, f.String())
}

// PartialFailure tells that iptables refused a transaction with changes of Services.
func (m *Metrics) PartialFailure(f k8s.Family) { m.count(iptablesPartialFailures, 1, f.String()) }

// Forgot counts UDP connections that were forgotten after their endpoints were gone.
func (m *Metrics) Forgot(f k8s.Family, connections int, took time.Duration) {
	m.count(conntrackDeleted, connections, f.String())
	m.observe(conntrackDuration, took, f.String())
}

// HealthAnswer counts an answer of /healthz or /livez.
func (m *Metrics) HealthAnswer(path string, code int) {
	def := healthzTotal
	if path == "/livez" {
		def = livezTotal
	}
	m.count(def, 1, strconv.Itoa(code))
}
