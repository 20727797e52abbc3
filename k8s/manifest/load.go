package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// Set is what Load found.
type Set struct {
	Objects []k8s.Change // one Upsert for each object, sorted by Ref
	k8s.Problems
}

// Err returns the errors as one, each in its own line; nil if there are none.
func (m *Set) Err() error {
	var list []error
	for _, w := range m.Errors {
		list = append(list, errors.New(w.String()))
	}
	return errors.Join(list...)
}

// Load reads a file, or the *.yaml, *.yml and *.json files of a directory (not those below it), once.
// Services, EndpointSlices, Nodes and ServiceCIDRs are taken, other kinds are skipped. Objects with errors
// are left out.
func Load(path string) *Set {
	r := newReader(path)
	r.scan()
	objects, problems := r.assemble(nil)
	m := &Set{Problems: problems}
	for ref, o := range objects {
		m.Objects = append(m.Objects,
			k8s.Change{Op: k8s.Upsert, Ref: ref, Object: o.object, Origin: o.origin})
	}
	slices.SortFunc(m.Objects, k8s.Change.Compare)
	return m
}

// located is an object and its origin.
type located struct {
	ref    k8s.Ref
	object k8s.Object
	origin k8s.Origin
}

// reader reads the files of a path, repeatedly if needed, and keeps their state.
type reader struct {
	path    string
	files   map[string]*file
	changed map[string]bool // names that file system events gave since the last look
	missing error           // the path itself could not be read; the state of its files stays
}

func newReader(path string) *reader {
	return &reader{path: path, files: map[string]*file{}, changed: map[string]bool{}}
}

// scan reads the files that are new, or have changed as events or their times show, and forgets those that
// are gone.
func (r *reader) scan() {
	found, err := listFiles(r.path)
	r.missing = err
	if err != nil {
		return
	}

	before := r.files
	r.files = make(map[string]*file, len(found))
	for path, target := range found {
		f := before[path]
		if f == nil {
			f = &file{path: path}
		}
		r.files[path] = f
		f.target = target
		f.update(r.changed[path] || r.changed[target])
	}
}

// revision is Source.Revision.
func (r *reader) revision() string {
	names := slices.Sorted(maps.Keys(r.files))
	if len(names) == 1 && names[0] == r.path {
		return hex.EncodeToString(r.files[r.path].digest[:])
	}
	list := sha256.New()
	for _, name := range names {
		fmt.Fprintf(list, "%x  %s\n", r.files[name].digest, filepath.Base(name))
	}
	return hex.EncodeToString(list.Sum(nil))
}

// listFiles returns the manifest files of a path with their targets: the path itself if it is a file. A
// target differs if there is a symbolic link in the path. Hidden files are skipped, because editors keep
// locks and backups in them. There may be very many files: only symbolic links are resolved.
func listFiles(path string) (targets map[string]string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return map[string]string{path: target(path)}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}

	dir, targets := target(path), map[string]string{}
	for _, e := range entries {
		name := e.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(name, ".") {
			continue
		}
		at := filepath.Join(path, name)
		if e.Type().IsRegular() {
			targets[at] = filepath.Join(dir, name)
		} else if info, err := os.Stat(at); err != nil || !info.IsDir() {
			targets[at] = target(at)
		}
	}
	return targets, nil
}

// assemble merges the files. published is the state in force: an object with two definitions stays as it is
// there, else its first definition counts.
func (r *reader) assemble(published map[k8s.Ref]located) (objects map[k8s.Ref]located, p k8s.Problems) {
	objects = map[k8s.Ref]located{}
	if r.missing != nil {
		p.Errors = []k8s.Warning{{Text: "cannot read the manifests: " + brief.Line(r.missing.Error())}}
	} else if len(r.files) == 0 {
		p.Warnings = []k8s.Warning{{Where: r.path, Text: "no *.yaml, *.yml or *.json file in this directory"}}
	}

	names := slices.Sorted(maps.Keys(r.files))
	for _, name := range names {
		f := r.files[name]
		errs := slices.Clone(f.errors)
		for _, o := range f.objects {
			first, duplicate := objects[o.ref]
			if !duplicate {
				objects[o.ref] = o
				continue
			}
			errs = append(errs, duplicateError(o.ref, o.origin, first.origin))
			if inForce, ok := published[o.ref]; ok {
				objects[o.ref] = inForce
			}
		}
		p.Errors = append(p.Errors, f.atMost(errs, "errors")...)
		p.Warnings = append(p.Warnings, f.atMost(f.warnings, "warnings")...)
	}

	for _, name := range names {
		for ref, o := range r.files[name].kept {
			if _, valid := objects[ref]; !valid {
				objects[ref] = o
			}
		}
	}
	return objects, p
}

func duplicateError(ref k8s.Ref, at, first k8s.Origin) k8s.Warning {
	text := fmt.Sprintf("is already in %s: remove one of the two", first)
	return k8s.Warning{Object: ref.String(), Where: at.String(), Text: text}
}

// difference returns the changes that turn one set of objects into another.
func difference(before, after map[k8s.Ref]located) []k8s.Change {
	var changes []k8s.Change
	for ref := range before {
		if _, ok := after[ref]; !ok {
			changes = append(changes, k8s.Change{Op: k8s.Delete, Ref: ref})
		}
	}
	for ref, e := range after {
		old, ok := before[ref]
		op := k8s.Upsert
		if ok && (old.object == e.object || reflect.DeepEqual(old.object, e.object)) {
			op = k8s.Renew
		}
		if op == k8s.Upsert || old.origin != e.origin {
			changes = append(changes, k8s.Change{Op: op, Ref: ref, Object: e.object, Origin: e.origin})
		}
	}
	slices.SortFunc(changes, k8s.Change.Compare)
	return changes
}
