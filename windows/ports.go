package windows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// HNS reserves dynamic ports in blocks, for load balancers without DSR and for outgoing connections of pods.
// Both numbers are those of Microsoft's networkhealth script (PortExhaustionTest in microsoft/SDN).
const (
	portBlock = 64 // consecutive ports
	fewBlocks = 10 // at most so many free blocks are too few
)

// PortBlocks are the blocks of 64 consecutive dynamic IPv4 ports of which none is in use or reserved.
type PortBlocks struct {
	TCP int `json:"tcp"`
	UDP int `json:"udp"`
}

// few returns a warning for each protocol that has too few.
func (b *PortBlocks) few() (list []string) {
	if b == nil {
		return nil
	}
	for _, p := range []struct {
		name string
		free int
	}{{"tcp", b.TCP}, {"udp", b.UDP}} {
		if p.free <= fewBlocks {
			list = append(list, fmt.Sprintf("%d blocks of %d dynamic %s ports are free, which is few: HNS reserves "+
				"them for load balancers without DSR and for outgoing connections of pods. "+
				"netsh int ipv4 show excludedportrange %s and netstat -ano show what has them; "+
				"--enable-dsr needs fewer; "+
				"a larger range: netsh int ipv4 set dynamicport %[4]s start=33000 num=32536",
				p.free, portBlock, strings.ToUpper(p.name), p.name))
		}
	}
	return list
}

// portRange are the ports from first to last.
type portRange struct{ first, last int }

// freeBlocks returns how many blocks of portBlock ports fit between the used ports of r.
func (r portRange) freeBlocks(used []portRange) (n int) {
	slices.SortFunc(used, func(a, b portRange) int { return cmp.Compare(a.first, b.first) })
	next := r.first // the first port behind the used ones so far
	for _, u := range append(used, portRange{r.last + 1, r.last + 1}) {
		n += max(0, min(u.first, r.last+1)-next) / portBlock
		next = max(next, u.last+1)
	}
	return n
}

// parseDynamicRange reads what netsh interface ipv4 show dynamicportrange prints, in any language: the first
// port and the number of ports.
func parseDynamicRange(text string) (r portRange, err error) {
	var numbers []int
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			if n, err := strconv.Atoi(fields[len(fields)-1]); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) != 2 || numbers[0] < 1 || numbers[1] < 1 || numbers[0]+numbers[1] > 65536 {
		return r, fmt.Errorf("netsh does not say which ports are dynamic: %q", text)
	}
	return portRange{numbers[0], numbers[0] + numbers[1] - 1}, nil
}

// parseExclusions reads what netsh interface ipv4 show excludedportrange prints: lines that begin with a
// first and a last port.
func parseExclusions(text string) (list []portRange) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		first, err1 := strconv.ParseUint(fields[0], 10, 16)
		last, err2 := strconv.ParseUint(fields[1], 10, 16)
		if err1 == nil && err2 == nil {
			list = append(list, portRange{int(first), int(last)})
		}
	}
	return list
}

// readPorts counts the free port blocks every statePeriod. netsh takes long now and then, so that it runs in
// the background; it ends before the next time.
func (p *Plane) readPorts(ctx context.Context, now time.Time) {
	if now.Sub(p.portsRead) < statePeriod {
		return
	}
	p.portsRead = now
	p.background.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, portsTime)
		defer cancel()
		blocks, err := p.opts.portBlocks(ctx)
		if ctx.Err() != nil && err != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		for _, w := range p.status.setPorts(blocks, err) {
			p.opts.Log.Warn(w)
		}
	})
}
