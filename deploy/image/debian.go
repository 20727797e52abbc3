package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// packagesLock has a line for each package: architecture, name, version, path below the mirror's root, SHA-256. Its first line,
// a comment, ends with the time at which the archive had them. The script lock writes it.
//
//go:embed packages.lock
var packagesLock string

// mirrors returns the addresses of Debian archives to ask, in order: those in NKP_DEBIAN_MIRRORS, separated by spaces, else those that
// apt uses on this machine. An archive drops a package when a newer version replaces it; one of snapshots at lockTime has it for good.
func mirrors() ([]string, error) {
	if list := strings.Fields(os.Getenv("NKP_DEBIAN_MIRRORS")); len(list) > 0 {
		return list, nil
	}
	out, err := exec.Command("apt-get", "indextargets", "-o", "APT::Get::IndexTargets::OnlyPresent=false", "--format", "$(REPO_URI)").Output()
	list := strings.Fields(string(out))
	slices.Sort(list)
	if list = slices.Compact(list); err != nil || len(list) == 0 {
		return nil, fmt.Errorf("apt names no Debian archive (%v); set NKP_DEBIAN_MIRRORS to the address of one", err)
	}
	return list, nil
}

// lockTime returns the time of packages.lock, as 20260711T101637Z.
func lockTime() string {
	first, _, _ := strings.Cut(packagesLock, "\n")
	return first[strings.LastIndexByte(first, ' ')+1:]
}

// A pinned is one line of packages.lock.
type pinned struct{ arch, name, version, path, sum string }

func locked(arch string) ([]pinned, error) {
	var list []pinned
	lines := bufio.NewScanner(strings.NewReader(packagesLock))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 0 || f[0] == "#":
		case len(f) != 5 || len(f[4]) != 2*sha256.Size:
			return nil, fmt.Errorf("packages.lock: %q: want architecture, name, version, path and SHA-256", lines.Text())
		case f[0] == arch:
			list = append(list, pinned{f[0], f[1], f[2], f[3], f[4]})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("packages.lock has no package for %s", arch)
	}
	return list, nil
}

// debian fetches packages from mirrors and keeps them in a folder.
type debian struct {
	cache   string
	mirrors []string
}

// fetch returns the path of a package whose checksum fits.
func (d debian) fetch(p pinned) (string, error) {
	target := filepath.Join(d.cache, path.Base(p.path))
	if text, err := os.ReadFile(target); err == nil && p.fits(text) {
		return target, nil
	}
	if err := os.MkdirAll(d.cache, 0o755); err != nil {
		return "", err
	}
	var errs []error
	for _, m := range d.mirrors {
		text, err := get(strings.TrimSuffix(m, "/") + "/" + p.path)
		if err == nil && !p.fits(text) {
			err = fmt.Errorf("%s/%s: SHA-256 is not %s", m, p.path, p.sum)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// Renamed into place, so that a build beside this one never reads half a file.
		partial, err := os.CreateTemp(d.cache, ".partial-")
		if err != nil {
			return "", err
		}
		_, err = partial.Write(text)
		return target, errors.Join(err, partial.Close(), os.Rename(partial.Name(), target))
	}
	return "", fmt.Errorf("%s %s (if Debian has a newer version, run deploy/image/lock, or set NKP_DEBIAN_MIRRORS to an archive of snapshots at %s): %w", p.name, p.version, lockTime(), errors.Join(errs...))
}

func (p pinned) fits(text []byte) bool {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]) == p.sum
}

// get returns what a URL has, within a minute and up to 100 MB: the largest package pinned, libc6, has 3 MB.
func get(url string) ([]byte, error) {
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, 100<<20))
}

// unpack returns the files of a package, and its control file.
func unpack(deb string) (files, []byte, error) {
	control, err := exec.Command("dpkg-deb", "--field", deb).Output()
	if err != nil {
		return nil, nil, fmt.Errorf("dpkg-deb --field %s: %w", deb, err)
	}
	text, err := exec.Command("dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		return nil, nil, fmt.Errorf("dpkg-deb --fsys-tarfile %s: %w", deb, err)
	}
	content := files{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return content, control, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", deb, err)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(r)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %s: %w", deb, name, err)
			}
			content[name] = file{data: data, mode: h.FileInfo().Mode().Perm()}
		case tar.TypeSymlink:
			content[name] = file{link: h.Linkname}
		case tar.TypeLink:
			content[name] = content[path.Clean(h.Linkname)]
		}
	}
}
