package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// registry precedes the images' names. No registry is asked: it is the name under which the manifests in deploy refer to them.
const registry = "registry.example.com"

func main() {
	version := flag.String("version", "", "the images' tag")
	dist := flag.String("dist", "dist", "folder of the binaries and of the archives")
	cache := flag.String("cache", filepath.Join(os.TempDir(), "nkp-debs"), "folder that keeps downloaded Debian packages")
	prefix := flag.String("registry", registry, "what precedes the images' names")
	flag.Parse()
	archs := flag.Args()
	if len(archs) == 0 {
		archs = []string{"amd64", "arm64"}
	}
	list, err := mirrors()
	if err == nil {
		err = build(release{version: *version, registry: *prefix, dist: *dist, archs: archs, packages: debian{cache: *cache, mirrors: list}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// licensesFile, beside the binaries, has the licenses of the modules that they are linked from.
const licensesFile = "third-party-licenses.txt"

// A release is what is built, and from what.
type release struct {
	version, registry, dist string
	archs                   []string
	packages                debian
	created                 time.Time
}

func build(r release) error {
	if r.version == "" {
		return fmt.Errorf("no -version")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH, the images' time in seconds: %w", err)
	}
	r.created = time.Unix(epoch, 0).UTC()

	licenses, err := os.ReadFile(filepath.Join(r.dist, licensesFile))
	if err != nil {
		return err
	}
	text := file{data: licenses, mode: 0o644}

	plain := image{name: "nkp", title: "nkp for nodes with Open vSwitch", entrypoint: "/nkp"}
	iptables := image{name: "nkp-iptables", title: "nkp with iptables", entrypoint: "/usr/bin/nkp", env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
	windows := image{name: "nkp-windows", title: "nkp for Windows nodes, as a HostProcess container", entrypoint: "nkp.exe"}
	for _, arch := range r.archs {
		binary, err := os.ReadFile(filepath.Join(r.dist, "nkp-linux-"+arch))
		if err != nil {
			return err
		}
		tree, err := r.packages.iptables(arch)
		if err != nil {
			return fmt.Errorf("nkp-iptables for %s: %w", arch, err)
		}
		plain.add("linux", arch, files{"nkp": {data: binary, mode: 0o755}, licensesFile: text})
		iptables.add("linux", arch, tree, files{"usr/bin/nkp": {data: binary, mode: 0o755}, "usr/share/doc/nkp/" + licensesFile: text})
		if arch == "amd64" {
			binary, err := os.ReadFile(filepath.Join(r.dist, "nkp-windows-amd64.exe"))
			if err != nil {
				return err
			}
			windows.add("windows", arch, windowsBase(), windowsFiles(files{"nkp.exe": {data: binary, mode: 0o755}, licensesFile: text}))
		}
	}
	for _, i := range []image{plain, iptables, windows} {
		if len(i.platforms) == 0 {
			continue
		}
		if err := i.write(r); err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
	}
	return nil
}
