//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
)

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// removeEndpoint takes the line of an endpoint out of the working copy and returns it, and the file as it was.
func (l *lab) removeEndpoint(ip string) (line, before string, err error) {
	b, err := os.ReadFile(l.working)
	if err != nil {
		return "", "", err
	}
	after, line, err := withoutEndpoint(string(b), ip)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", l.working, err)
	}
	return line, string(b), l.writeManifest(after)
}

// writeManifest replaces the working copy in one step, so that nkp never reads half of it.
func (l *lab) writeManifest(text string) error {
	tmp := l.working + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, l.working)
}

// withoutEndpoint is the manifest without the one line that is the endpoint ip.
func withoutEndpoint(text, ip string) (after, line string, err error) {
	var b strings.Builder
	n := 0
	for l := range strings.Lines(text) {
		if strings.Contains(l, "addresses: ["+ip+"]") && strings.HasPrefix(strings.TrimSpace(l), "- {") {
			line = strings.TrimSpace(l)
			n++
			continue
		}
		b.WriteString(l)
	}
	if n != 1 {
		return "", "", fmt.Errorf("%d lines are the endpoint %s, not one; this demo is made for examples/guestbook.yaml", n, ip)
	}
	return b.String(), line, nil
}
