package metrics

import (
	"strconv"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Synced counts a sync of the data plane.
func (m *Metrics) Synced(s dataplane.Sync) {
	kind := syncPartialDuration
	if s.Full {
		kind = syncFullDuration
	}
	now := unix(m.opts.Clock())
	for _, f := range s.Families {
		m.observe(syncDuration, s.Took, f.String())
		m.observe(kind, s.Took, f.String())
		m.set(syncLast, now, f.String())
	}
}

// Transaction counts a transaction with the switch.
func (m *Metrics) Transaction(t dataplane.Transaction) {
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
	}
}

// Restore counts a run of iptables-restore.
func (m *Metrics) Restore(r dataplane.Restore) {
	f := r.Family.String()
	switch {
	case r.Backend == NFTables && r.Err != nil:
		m.count(nftCommits, 1, f, "failed")
		m.count(nftablesFailures, 1, f)
		return
	case r.Backend == NFTables:
		m.count(nftCommits, 1, f, "ok")
		m.observe(nftCommitTime, r.Took, f)
		return
	case r.Err != nil:
		m.count(restores, 1, r.Backend, f, "failed")
		m.count(iptablesFailures, 1, f)
		return
	}
	m.count(restores, 1, r.Backend, f, "ok")
	m.observe(restoreTime, r.Took, r.Backend, f)
	m.count(rulesWritten, r.Rules, r.Table, f)
	m.set(iptablesLast, float64(r.Rules), r.Table, f)
}

// PartialFailure counts a transaction with changes of Services that iptables refused.
func (m *Metrics) PartialFailure(f k8s.Family) { m.count(iptablesPartialFailures, 1, f.String()) }

// Forgot counts the conntrack entries that one scan deleted.
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
