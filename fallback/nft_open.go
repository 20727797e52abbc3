//go:build linux

package fallback

import "errors"

// openNFT opens a socket for each family.
func (p *Plane) openNFT() (workers []familyWorker, err error) {
	p.lookAtKernel()
	p.mu.Lock()
	p.status.Backend, p.status.Reason, p.status.RandomFully = backendNFTables, "asked for", true
	p.mu.Unlock()
	for _, f := range p.opts.families() {
		w, problem := newNFTWorker(f, &p.opts, p.inbox[f], p.loops[f], func(change func(*FamilyStatus)) { p.report(f, change) })
		if problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		workers = append(workers, w)
	}
	return workers, err
}
