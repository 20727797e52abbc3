package service

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"
)

// Netsh runs netsh until it ends or the context does, and returns its output.
func Netsh(ctx context.Context, args ...string) ([]byte, error) {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, filepath.Join(system, "netsh.exe"), args...)
	c.WaitDelay = waitDelay
	out, err := c.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("netsh %s: %w: %s", strings.Join(args, " "), err, strings.Join(strings.Fields(string(out)), " "))
	}
	return out, nil
}
