package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"github.com/nkp-proxy/nkp/windows/access"
)

// Files beside the program: the one that it replaced, and those that are to replace it. The latter end in
// .exe so that they can be run.
const (
	oldSuffix = ".old"
	nextFiles = Name + "-*.new.exe"
)

const (
	checkTime = 30 * time.Second // for a program to check its flags
	waitDelay = 5 * time.Second  // for the output of a program that has ended: a child may hold it open
)

// exitUsage is nkp's exit status for flags that it does not accept.
const exitUsage = 2

// checkPlace returns an error if others than administrators could change or replace the program, which runs
// as SYSTEM.
func checkPlace(program string) error {
	dir := filepath.Dir(program)
	err := access.CheckAbove(dir)
	for _, path := range []string{dir, program} {
		if err == nil {
			err = ignoreMissing(access.CheckPath(path))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: take that right away (icacls), or install with another --directory", err)
	}
	return nil
}

// stage copies a program into a directory, under a name of its own, and returns the copy with its checksum.
// The source itself must not be run: a user who may write where it is could exchange it after its check, or
// put a library beside it that it loads.
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
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return "", "", errors.Join(err, os.Remove(out.Name()))
	}
	return out.Name(), hex.EncodeToString(h.Sum(nil)), nil
}

// checksum returns the SHA-256 of a file; "" if there is none.
func checksum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", ignoreMissing(err)
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// checkProgram runs a copy of the program source, and returns its answer. A program that is not nkp, and one
// that does not accept the flags of run, is an error.
func checkProgram(ctx context.Context, file, source string, args []string) (p Program, err error) {
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

// exchange puts a new program in the place of the old one, which stays beside it.
type exchange struct {
	program, next string
	had           bool // there is an old program
	moved         bool // it has its new name
}

func (x *exchange) do() error {
	if x.had {
		if err := discard(x.program + oldSuffix); err != nil {
			return err
		}
		if err := os.Rename(x.program, x.program+oldSuffix); err != nil { // possible while it runs
			return err
		}
		x.moved = true
	}
	return os.Rename(x.next, x.program)
}

// undo restores the old program, however far do has come.
func (x *exchange) undo() error {
	switch {
	case x.moved:
		return joined(discard(x.program), os.Rename(x.program+oldSuffix, x.program))
	case x.had:
		return nil
	}
	return discard(x.program)
}

// removeProgram deletes the program with what install left beside it, and their directory if it is empty
// then.
func removeProgram(program string) error {
	dir := filepath.Dir(program)
	next, err := filepath.Glob(filepath.Join(dir, nextFiles)) // of installations that were killed
	for _, file := range append(next, program, program+oldSuffix) {
		err = joined(err, discard(file))
	}
	_ = os.Remove(dir) // it may hold other files
	return err
}

// discard deletes a file. A program that runs, such as the caller's own, is renamed, and deleted when the
// system starts again. The delete-at-reboot entry names a path: unrenamed, it would delete a new install.
func discard(file string) error {
	aside := fmt.Sprintf("%s.%d.deleted", file, time.Now().UnixNano())
	if err := os.Rename(file, aside); err != nil {
		return ignoreMissing(err)
	}
	if os.Remove(aside) == nil {
		return nil
	}
	name, err := windows.UTF16PtrFromString(aside)
	if err != nil {
		return err
	}
	return windows.MoveFileEx(name, nil, windows.MOVEFILE_DELAY_UNTIL_REBOOT)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// joined is errors.Join with the errors in one line.
func joined(errs ...error) (all error) {
	for _, err := range errs {
		switch {
		case all == nil:
			all = err
		case err != nil:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}
