package manifest

import (
	"cmp"
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
// Services, EndpointSlices, Nodes and ServiceCIDRs are taken, other kinds are skipped. Objects with errors are left out.
func Load(path string) *Set {
	r := newReader(path)
	r.scan()
	state := r.assemble(nil)
	m := &Set{Problems: state.problems}
	for ref, e := range state.objects {
		m.Objects = append(m.Objects, k8s.Change{Op: k8s.Upsert, Ref: ref, Object: e.object, Origin: e.origin})
	}
	slices.SortFunc(m.Objects, k8s.Change.Compare)
	return m
}

// located is an object and its origin.
type located struct {
	object k8s.Object
	origin k8s.Origin
}

// state is what all files together hold.
type state struct {
	objects  map[k8s.Ref]located
	problems k8s.Problems
}

// reader reads the files of a path, repeatedly if needed, and keeps their state.
type reader struct {
	path    string
	files   map[string]*file
	missing error // the path itself could not be read; the state of its files stays
	empty   bool  // the path is a directory without manifests
}

func newReader(path string) *reader {
	return &reader{path: path, files: map[string]*file{}}
}

// scan reads the files that are new or may have changed, and forgets those that are gone.
func (r *reader) scan() {
	var found []listed
	found, r.missing = listFiles(r.path)
	if r.missing != nil {
		return
	}
	r.empty = len(found) == 0

	before := r.files
	r.files = make(map[string]*file, len(found))
	for _, l := range found {
		f := before[l.path]
		if f == nil {
			f = &file{path: l.path}
		}
		r.files[l.path] = f
		f.target = l.target
		f.update()
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

// listed is a file and its target, which differs if there is a symbolic link in its path.
type listed struct{ path, target string }

// listFiles returns the manifest files of a path, sorted: the path itself if it is a file. Hidden files are
// skipped, because editors keep locks and backups in them. There may be very many: only symbolic links are resolved.
func listFiles(path string) ([]listed, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []listed{{path, target(path)}}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	dir := target(path)
	var found []listed
	for _, e := range entries {
		l := listed{filepath.Join(path, e.Name()), filepath.Join(dir, e.Name())}
		switch filepath.Ext(l.path) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !e.Type().IsRegular() {
			if info, err := os.Stat(l.path); err == nil && info.IsDir() {
				continue
			}
			l.target = target(l.path)
		}
		found = append(found, l)
	}
	return found, nil
}

// assemble merges the files. published is the state in force: an object with two definitions stays as it is
// there, else the first definition counts.
func (r *reader) assemble(published map[k8s.Ref]located) state {
	s := state{objects: map[k8s.Ref]located{}}
	if r.missing != nil {
		s.problems.Errors = append(s.problems.Errors, k8s.Warning{Text: "cannot read the manifests: " + brief.Line(r.missing.Error())})
	} else if r.empty {
		s.problems.Warnings = append(s.problems.Warnings, k8s.Warning{Where: r.path, Text: "no *.yaml, *.yml or *.json file in this directory"})
	}
	names := slices.Sorted(maps.Keys(r.files))
	for _, name := range names {
		f := r.files[name]
		s.problems.Errors = append(s.problems.Errors, f.errors...)
		s.problems.Warnings = append(s.problems.Warnings, f.warnings...)
		var again []k8s.Warning
		for ref, e := range f.objects {
			first, twice := s.objects[ref]
			if !twice {
				s.objects[ref] = e
				continue
			}
			again = append(again, duplicateError(ref, e.origin, first.origin))
			if p, ok := published[ref]; ok {
				s.objects[ref] = p
			}
		}
		slices.SortFunc(again, func(a, b k8s.Warning) int { return cmp.Compare(a.Object, b.Object) })
		s.problems.Errors = append(s.problems.Errors, again...)
	}
	for _, name := range names {
		for ref, e := range r.files[name].kept {
			if _, fresh := s.objects[ref]; !fresh {
				s.objects[ref] = e
			}
		}
	}
	return s
}

func duplicateError(ref k8s.Ref, at, first k8s.Origin) k8s.Warning {
	return k8s.Warning{Object: ref.String(), Where: at.String(), Text: fmt.Sprintf("is already in %s: remove one of the two", first)}
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
		switch {
		case !ok, old.object != e.object && !reflect.DeepEqual(old.object, e.object):
			changes = append(changes, k8s.Change{Op: k8s.Upsert, Ref: ref, Object: e.object, Origin: e.origin})
		case old.origin != e.origin:
			changes = append(changes, k8s.Change{Op: k8s.Move, Ref: ref, Origin: e.origin})
		}
	}
	slices.SortFunc(changes, k8s.Change.Compare)
	return changes
}
