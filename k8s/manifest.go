package k8s

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Manifests is what LoadManifests found.
type Manifests struct {
	Objects []Change // one Upsert for each object, sorted by Ref
	Problems
}

// Err gives the errors as one, each in its own line; nil if there are none.
func (m *Manifests) Err() error {
	var list []error
	for _, w := range m.Errors {
		list = append(list, errors.New(w.String()))
	}
	return errors.Join(list...)
}

// LoadManifests reads a file, or the *.yaml, *.yml and *.json files of a directory (not those below it), once.
// Services, EndpointSlices, Nodes and ServiceCIDRs are taken, other kinds are skipped. Objects with errors are left out.
func LoadManifests(path string) *Manifests {
	r := newReader(path)
	r.scan(nil)
	state := r.assemble(nil)
	m := &Manifests{Problems: state.problems}
	for ref, e := range state.objects {
		m.Objects = append(m.Objects, Change{Upsert, ref, e.object, e.origin})
	}
	sortChanges(m.Objects)
	return m
}

func sortChanges(changes []Change) {
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Or(-cmp.Compare(a.Op, b.Op), a.Ref.Compare(b.Ref)) })
}

// placed is an object and where it stands.
type placed struct {
	object Object
	origin Origin
}

// state is what all files together hold.
type state struct {
	objects  map[Ref]placed
	problems Problems
}

// reader reads the files of a path, again and again if need be, and keeps what it knows of them.
type reader struct {
	path    string
	files   map[string]*file
	missing error // the path itself could not be read; what is known of its files stays
	empty   bool  // the path is a directory without manifests
}

func newReader(path string) *reader {
	return &reader{path: path, files: map[string]*file{}}
}

// scan brings the files up to date. A file is read if it looks changed, or if touched says so.
func (r *reader) scan(touched func(path string) bool) {
	var names []string
	names, r.missing = listFiles(r.path)
	if r.missing != nil {
		return
	}
	r.empty = len(names) == 0
	for name := range r.files {
		if !slices.Contains(names, name) {
			delete(r.files, name)
		}
	}
	for _, name := range names {
		f := r.files[name]
		if f == nil {
			f = &file{path: name}
			r.files[name] = f
		}
		f.update(touched != nil && touched(name))
	}
}

// listFiles gives the manifest files of a path, sorted: the path itself if it is a file. Hidden files are left
// out: editors keep their locks and backups in such.
func listFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		names = append(names, name)
	}
	return names, nil
}

// assemble puts the files together. published is what is in force: an object that stands in two places stays as
// it is there, else the first place counts.
func (r *reader) assemble(published map[Ref]placed) state {
	s := state{objects: map[Ref]placed{}}
	if r.missing != nil {
		s.problems.Errors = append(s.problems.Errors, Warning{Text: "cannot read the manifests: " + brief(r.missing.Error())})
	} else if r.empty {
		s.problems.Warnings = append(s.problems.Warnings, Warning{Where: r.path, Text: "no *.yaml, *.yml or *.json file in this directory"})
	}
	names := make([]string, 0, len(r.files))
	for name := range r.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f := r.files[name]
		s.problems.Errors = append(s.problems.Errors, f.errors...)
		s.problems.Warnings = append(s.problems.Warnings, f.warnings...)
		for ref, e := range f.objects {
			first, twice := s.objects[ref]
			if !twice {
				s.objects[ref] = e
				continue
			}
			s.problems.Errors = append(s.problems.Errors, twiceError(ref, e.origin, first.origin))
			if p, ok := published[ref]; ok {
				s.objects[ref] = p
			}
		}
	}
	for _, name := range names {
		for ref, e := range r.files[name].kept {
			if _, fresh := s.objects[ref]; !fresh {
				s.objects[ref] = e
			}
		}
	}
	for _, list := range [][]Warning{s.problems.Errors, s.problems.Warnings} {
		slices.SortStableFunc(list, func(a, b Warning) int { return cmp.Compare(a.fileOf(), b.fileOf()) })
	}
	return s
}

// fileOf gives what comes before the first comma of Where; problems of one file are in order already.
func (w Warning) fileOf() string {
	name, _, _ := strings.Cut(w.Where, ", document ")
	return name
}

func twiceError(ref Ref, at, first Origin) Warning {
	return Warning{Object: ref.String(), Where: at.String(), Text: fmt.Sprintf("is already in %s: remove one of the two", first)}
}

// difference gives what turns one set of objects into another.
func difference(before, after map[Ref]placed) []Change {
	var changes []Change
	for ref := range before {
		if _, ok := after[ref]; !ok {
			changes = append(changes, Change{Op: Delete, Ref: ref})
		}
	}
	for ref, e := range after {
		old, ok := before[ref]
		switch {
		case !ok, old.object != e.object && !reflect.DeepEqual(old.object, e.object):
			changes = append(changes, Change{Upsert, ref, e.object, e.origin})
		case old.origin != e.origin:
			changes = append(changes, Change{Op: Move, Ref: ref, Origin: e.origin})
		}
	}
	sortChanges(changes)
	return changes
}
