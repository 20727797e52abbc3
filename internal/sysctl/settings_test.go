package sysctl

import (
	"testing"
	"time"
)

func TestMaxConnections(t *testing.T) {
	for _, c := range []struct {
		perCore, least, cpus, want int
	}{
		{32768, 131072, 2, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 8, 262144},
		{32768, 131072, 31, 1015808},
		{32768, 131072, 32, 1048576},
		{32768, 131072, 33, 1048576},
		{32768, 131072, 512, 1048576},
		{1 << 40, 0, 1 << 30, 1048576}, // no overflow
		{0, 131072, 64, 0},             // no number per core: left alone, whatever the minimum
		{1000, 0, 3, 3000},
		{1000, 2000000, 3, 2000000}, // the minimum is not bounded
	} {
		s := Settings{MaxPerCore: c.perCore, Min: c.least}
		if got := s.max(c.cpus); got != c.want {
			t.Errorf("%d per core, at least %d, on %d CPUs: %d connections, want %d", c.perCore, c.least, c.cpus, got, c.want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int{
		0: 0, time.Nanosecond: 1, 500 * time.Millisecond: 1, time.Second: 1, 1500 * time.Millisecond: 2, 24 * time.Hour: 86400,
		1<<63 - 1: 1<<31 - 1,
	} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %d s, want %d", d, got, want)
		}
	}
}
