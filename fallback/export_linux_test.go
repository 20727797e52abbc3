package fallback

import (
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// SetLockDir sets where the owner's lock is.
func SetLockDir(dir string) { lockDir = dir }

// SetLocalnetFile sets the file that stands for a container's volume.
func SetLocalnetFile(file string) { localnetFiles[1] = file }

// ForgetCounters has Counters list the rules anew.
func (p *Plane) ForgetCounters() {
	p.counted = dataplane.NewCache[map[k8s.PortName]k8s.Counters](countersAge)
}
