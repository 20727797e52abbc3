//go:build !windows

package service

import (
	"context"
	"strings"
	"testing"
)

// Elsewhere everything fails with an error that says what to do.
func TestElsewhere(t *testing.T) {
	if IsService() {
		t.Error("this is a service")
	}
	_, eventLog := EventLog(nil)
	ctx := context.Background()
	_, query := Query()
	for name, err := range map[string]error{
		"Run":     Run(func(context.Context) error { t.Error("the program ran"); return nil }),
		"Install": Install(ctx, Config{}), "Upgrade": Upgrade(ctx, Config{}), "Uninstall": Uninstall(ctx, Config{}, false), "Query": query, "EventLog": eventLog,
	} {
		if err == nil || !strings.Contains(err.Error(), "on Windows only") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
