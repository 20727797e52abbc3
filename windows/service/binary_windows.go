package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// checkTime bounds how long a program may take to check its flags.
const checkTime = 30 * time.Second

// waitDelay bounds the wait for the output of a program that has ended, because a child of it may hold the output open.
const waitDelay = 5 * time.Second

// exitUsage is nkp's exit status for flags that it does not accept.
const exitUsage = 2

// machines are the values of a PE file's machine field by GOARCH.
var machines = map[string]uint16{"amd64": pe.IMAGE_FILE_MACHINE_AMD64, "arm64": pe.IMAGE_FILE_MACHINE_ARM64}

// checkBinary checks that a file, a copy of source, is a program for this machine and an nkp that accepts flags of run. It returns its
// answer.
func checkBinary(ctx context.Context, file, source string, args []string) (p Program, err error) {
	f, err := pe.Open(file)
	if err != nil {
		return p, fmt.Errorf("%s is not a Windows program: %w", source, err)
	}
	machine := f.Machine
	f.Close()
	if machine != machines[runtime.GOARCH] {
		return p, fmt.Errorf("%s is for another machine (type 0x%x, not 0x%x, %s)", source, machine, machines[runtime.GOARCH], runtime.GOARCH)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	c := exec.CommandContext(ctx, file, append([]string{"windows-service", "check", "--"}, args...)...)
	c.WaitDelay = waitDelay
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		why := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "nkp: ")
		if exit.ExitCode() == exitUsage {
			return p, fmt.Errorf("%w: %s", ErrFlags, why)
		}
		return p, fmt.Errorf("%s rejects the flags or their files: %s", source, why)
	}
	if err = errors.Join(err, ctx.Err()); err == nil {
		err = json.Unmarshal(out, &p)
	}
	if err == nil && p.Version == "" {
		err = errors.New("no version")
	}
	if err != nil {
		return p, fmt.Errorf("%s does not answer as nkp does: %w", source, err)
	}
	return p, nil
}

// checksum returns the SHA-256 of a file.
func checksum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// stage copies a program into a directory, as a new file with a name of its own, and returns the copy and its checksum. It does not run
// the source: whoever may write where that is could exchange it after its check, or put a library beside it that it loads.
func stage(from, dir string) (file, sum string, err error) {
	in, err := os.Open(from)
	if err != nil {
		return "", "", err
	}
	defer in.Close()

	out, err := os.CreateTemp(dir, nextFiles)
	if err != nil {
		return "", "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), in)
	return out.Name(), hex.EncodeToString(h.Sum(nil)), errors.Join(err, out.Sync(), out.Close())
}
