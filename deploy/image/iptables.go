package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// wanted matches the files that nkp-iptables needs, links aside: iptables of both back ends by its full names (nkp finds out
// which of them the node uses), its extensions, the names of protocols, a shell for the init container that sets sysctls, and
// the packages' licences.
var wanted = regexp.MustCompile(`^(usr/sbin/xtables-(nft|legacy)-multi|usr/sbin/ip6?tables-(nft|legacy)(-restore|-save)?|usr/lib/[^/]+/xtables/[^/]+\.so|etc/protocols|bin/busybox|usr/share/doc/[^/]+/copyright)$`)

// shell are the names under which the init container calls busybox.
var shell = []string{"sh", "cat", "nproc"}

// iptables returns the files of iptables and of the libraries it is linked with, for one architecture.
func (d debian) iptables(arch string) (files, error) {
	list, err := locked(arch)
	if err != nil {
		return nil, err
	}
	all, tree := files{}, files{}
	for _, p := range list {
		deb, err := d.fetch(p)
		if err != nil {
			return nil, err
		}
		content, control, err := unpack(deb)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, content)
		// Scanners of images look for the packages here, one file each, where there is no dpkg.
		tree["var/lib/dpkg/status.d/"+p.name] = file{data: control, mode: 0o644}
	}
	for name, f := range all {
		if wanted.MatchString(name) {
			tree[name] = f
		}
	}
	for _, name := range shell {
		tree["bin/"+name] = file{link: "busybox"}
	}
	return tree, link(tree, all)
}

// link adds the libraries and the dynamic linker that the programs in tree need, from all the packages' files.
func link(tree, all files) error {
	for todo := slices.Sorted(maps.Keys(tree)); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		needs, err := needed(tree[name].data)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if target := tree[name].link; target != "" {
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(name), target)
			}
			needs = []string{target}
		}
		for _, n := range needs {
			found, err := library(all, n)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, ok := tree[found]; !ok {
				tree[found] = all[found]
				todo = append(todo, found)
			}
		}
	}
	return nil
}

// needed returns the libraries of an ELF file by name, and its dynamic linker by path; nothing for another kind of file.
func needed(data []byte) ([]string, error) {
	if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			if _, err := p.ReadAt(text, 0); err != nil {
				return nil, err
			}
			names = append(names, strings.TrimRight(string(text), "\x00"))
		}
	}
	return names, nil
}

// folder matches the folders in which Debian's dynamic linker searches.
var folder = regexp.MustCompile(`^(usr/)?lib(/[^/]+-linux-gnu)?$`)

// library returns the path of a file by its absolute path, or of a library by its name.
func library(all files, name string) (string, error) {
	if path.IsAbs(name) {
		if name = name[1:]; all[name].data == nil && all[name].link == "" {
			return "", fmt.Errorf("no package has /%s", name)
		}
		return name, nil
	}
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if path.Base(p) == name && folder.MatchString(path.Dir(p)) {
			return p, nil
		}
	}
	return "", fmt.Errorf("no package has the library %s", name)
}
