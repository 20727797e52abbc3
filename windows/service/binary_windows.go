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

// checkBinary checks that a file is a program for this machine with the checksum, if one is given, and an nkp that accepts flags of
// run. It returns its checksum and its answer.
func checkBinary(ctx context.Context, file, sum string, args []string) (string, Program, error) {
	var p Program
	have, err := checksum(file)
	if err != nil {
		return "", p, err
	}
	if sum != "" && !strings.EqualFold(sum, have) {
		return "", p, fmt.Errorf("%s has the SHA-256 checksum %s, not %s", file, have, strings.ToLower(sum))
	}
	f, err := pe.Open(file)
	if err != nil {
		return "", p, fmt.Errorf("%s is not a Windows program: %w", file, err)
	}
	machine := f.Machine
	f.Close()
	if machine != machines[runtime.GOARCH] {
		return "", p, fmt.Errorf("%s is for another machine (type 0x%x, not 0x%x, %s)", file, machine, machines[runtime.GOARCH], runtime.GOARCH)
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
			return "", p, fmt.Errorf("%w: %s", ErrFlags, why)
		}
		return "", p, fmt.Errorf("%s rejects the flags or their files: %s", file, why)
	}
	if err = errors.Join(err, ctx.Err()); err == nil {
		err = json.Unmarshal(out, &p)
	}
	if err == nil && p.Version == "" {
		err = errors.New("no version")
	}
	if err != nil {
		return "", p, fmt.Errorf("%s does not answer as nkp does: %w", file, err)
	}
	return have, p, nil
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

// copyProgram copies a file and checks that the copy has the checksum. The copy is a new file, so that it does not have the owner and the
// access list of a file that was there.
func copyProgram(to, from, sum string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := ignoreMissing(os.Remove(to)); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	if have := hex.EncodeToString(h.Sum(nil)); have != sum {
		return fmt.Errorf("%s has changed since it was checked: its checksum is %s, was %s", from, have, sum)
	}
	return nil
}
