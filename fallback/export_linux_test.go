package fallback

import "time"

// SetLockDir sets where the owner's lock is.
func SetLockDir(dir string) { lockDir = dir }

// SetLocalnetFile sets the file that stands for a container's volume.
func SetLocalnetFile(file string) { localnetFiles[1] = file }

// ForgetCounters has Counters list the rules anew.
func (p *Plane) ForgetCounters() {
	p.counted.asks <- struct{}{}
	p.counted.at = time.Time{}
	<-p.counted.asks
}
