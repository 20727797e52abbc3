// Package inforce has tests wait for what a running agent says of itself: which manifests it has programmed. A comparison by
// `nkp diff` then is a check and runs once; in a loop it would start a program and read all back each time.
package inforce

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/api"
)

// Manifests returns nil once the agent behind the socket has programmed what the file holds now. Refused objects count as programmed.
func Manifests(ctx context.Context, socket, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	caller := api.NewCaller(socket)
	defer caller.Close()
	s, err := caller.Status(ctx)
	if err != nil {
		return err
	}

	if want := fmt.Sprintf("%x", sha256.Sum256(text)); s.Source.Revision != want {
		return fmt.Errorf("the agent has applied revision %q of the manifests, not %q", s.Source.Revision, want)
	}
	if s.Status != nil && !s.InStep && len(s.Refused) == 0 {
		return fmt.Errorf("the switch is not in step")
	}
	if s.Localhost != nil && s.Localhost.Opening > 0 {
		return fmt.Errorf("%d NodePorts are about to be listened on at [::1]", s.Localhost.Opening)
	}
	for _, plane := range []*fallback.Status{s.IPTables, s.NFTables} {
		if plane == nil {
			continue
		}
		for _, f := range plane.Families {
			if !f.InStep {
				return fmt.Errorf("%s is not in step: %d pending", f.Family, f.Pending)
			}
		}
	}
	return nil
}
