package manifest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// maxPerFile bounds the errors, and the warnings, that are reported of one file.
const maxPerFile = 1000

// maxFileSize is the largest manifest that is read, in bytes.
var maxFileSize int64 = 256 << 20

// file is a manifest file and the result of its last parse.
type file struct {
	path   string
	target string      // path without symbolic links, as of the last scan
	info   os.FileInfo // as of the last read
	digest [sha256.Size]byte
	cache  map[pieceKey][]parsed // of the last parse that needed no unsplit

	objects  map[k8s.Ref]located // valid now
	kept     map[k8s.Ref]located // not valid or not readable now: the last good state
	errors   []k8s.Warning
	warnings []k8s.Warning
}

// pieceKey is the cache key of a piece (a YAML document, or one item of a List): a hash of its text, and how to parse it.
type pieceKey struct {
	sum  uint64
	size int
	item bool
	list string // the kind of List that an item is of
}

// seed is new in each process; hashes are not persisted.
var seed = maphash.MakeSeed()

// update reads the file if its size, time or inode have changed, or force is set.
func (f *file) update(force bool) {
	info, err := os.Stat(f.path)
	if err == nil && !force && f.info != nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime()) {
		return
	}
	var data []byte
	if err == nil {
		data, err = readFile(f.path)
	}
	sum := sha256.Sum256(data)
	if err == nil {
		data, err = text(data)
	}
	if err != nil {
		f.info, f.digest = nil, sum
		f.keepAll()
		f.errors, f.warnings = []k8s.Warning{{Where: f.path, Text: brief.Line(err.Error())}}, nil
		return
	}
	same := f.info != nil && sum == f.digest
	f.info, f.digest = info, sum
	if !same {
		f.parse(data)
	}
}

// readFile reads a file of at most maxFileSize.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	tooLarge := fmt.Errorf("larger than %d MiB: too large for a manifest", maxFileSize>>20)
	var buf bytes.Buffer
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		if info.Size() > maxFileSize {
			return nil, tooLarge
		}
		buf.Grow(int(info.Size()) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(file, maxFileSize+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) > maxFileSize {
		return nil, tooLarge
	}
	return buf.Bytes(), nil
}

// text checks that a file is UTF-8 text, and removes the byte order mark.
func text(data []byte) ([]byte, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, fmt.Errorf("not a text file: there is a zero byte at offset %d", i)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("not UTF-8 text: bad byte at offset %d", bytes.IndexRune(data, utf8.RuneError))
	}
	return data, nil
}

// parse derives objects and problems from the text of the file. Pieces found in the cache are not parsed again.
func (f *file) parse(data []byte) {
	pieces := split(data)
	results, splitFailed := f.parsePieces(pieces)
	if splitFailed {
		pieces = unsplit(pieces)
		results, _ = f.parsePieces(pieces)
	}
	before, keptBefore := f.objects, f.kept
	f.objects, f.kept, f.errors, f.warnings = map[k8s.Ref]located{}, nil, nil, nil
	unidentified := false // an object did not parse, and its name is not known
	invalid := map[k8s.Ref]bool{}
	for i := range pieces {
		for _, p := range results[i] {
			origin := k8s.Origin{File: f.path, Document: pieces[i].document, Item: pieces[i].item + p.offset}
			f.errors = appendAt(f.errors, inFile(p, pieces[i].line), origin)
			f.warnings = appendAt(f.warnings, p.warnings, origin)
			switch {
			case p.object != nil:
				f.add(p.ref, located{p.object, origin}, before)
			case len(p.errors) > 0 && p.ref == (k8s.Ref{}):
				unidentified = true
			case len(p.errors) > 0:
				invalid[p.ref] = true
			}
		}
	}
	f.errors, f.warnings = f.atMost(f.errors, "errors"), f.atMost(f.warnings, "warnings")
	f.kept = map[k8s.Ref]located{}
	for _, old := range []map[k8s.Ref]located{keptBefore, before} {
		for ref, e := range old {
			if _, ok := f.objects[ref]; !ok && (unidentified || invalid[ref]) {
				f.kept[ref] = e
			}
		}
	}
}

// yamlLine finds the line number in an error of the YAML library.
var yamlLine = regexp.MustCompile(`line \d+`)

// inFile returns the errors of a piece with line numbers counted from the start of the file.
func inFile(p parsed, line int) []k8s.Warning {
	if !p.syntax {
		return p.errors
	}
	ws := slices.Clone(p.errors)
	for i := range ws {
		ws[i].Text = yamlLine.ReplaceAllStringFunc(ws[i].Text, func(s string) string {
			n, err := strconv.Atoi(strings.TrimPrefix(s, "line "))
			if err != nil {
				return s
			}
			return fmt.Sprintf("line %d", n+line-1)
		})
	}
	return ws
}

// add records an object. A second definition in the file is an error: the object then keeps its state from before this parse, or if
// it is new, its first definition.
func (f *file) add(ref k8s.Ref, e located, before map[k8s.Ref]located) {
	first, duplicate := f.objects[ref]
	if !duplicate {
		f.objects[ref] = e
		return
	}
	f.errors = append(f.errors, duplicateError(ref, e.origin, first.origin))
	if old, ok := before[ref]; ok {
		f.objects[ref] = located{old.object, first.origin}
	}
}

// keepAll moves all objects of the file to kept, as their last good state.
func (f *file) keepAll() {
	kept := map[k8s.Ref]located{}
	maps.Copy(kept, f.kept)
	maps.Copy(kept, f.objects)
	f.kept, f.objects = kept, nil
}

// atMost truncates a list to maxPerFile.
func (f *file) atMost(list []k8s.Warning, what string) []k8s.Warning {
	if len(list) <= maxPerFile {
		return list
	}
	return append(list[:maxPerFile:maxPerFile], k8s.Warning{Where: f.path, Text: fmt.Sprintf("and %d more %s", len(list)-maxPerFile, what)})
}

func appendAt(list, ws []k8s.Warning, origin k8s.Origin) []k8s.Warning {
	for _, w := range ws {
		w.Where = origin.String()
		list = append(list, w)
	}
	return list
}

// parsePieces parses pieces on all processors and replaces the cache. splitFailed reports that an item of a List does
// not parse by itself.
func (f *file) parsePieces(pieces []piece) (results [][]parsed, splitFailed bool) {
	results = make([][]parsed, len(pieces))
	keys := make([]pieceKey, len(pieces))
	var todo []int
	for i := range pieces {
		p := &pieces[i]
		keys[i] = pieceKey{maphash.Bytes(seed, p.raw), len(p.raw), p.item > 0, p.list}
		if known, ok := f.cache[keys[i]]; ok {
			results[i] = known
		} else {
			todo = append(todo, i)
		}
	}
	failedAt := make([]bool, len(pieces))
	var workers errgroup.Group // its goroutines end when todo is used up
	workers.SetLimit(runtime.GOMAXPROCS(0))
	for batch := range slices.Chunk(todo, 16) {
		workers.Go(func() error {
			for _, i := range batch {
				var failed bool
				results[i], failed = pieces[i].parse()
				failedAt[i] = failed && pieces[i].item > 0
			}
			return nil
		})
	}
	_ = workers.Wait() // none fails
	if slices.Contains(failedAt, true) {
		return results, true
	}
	f.cache = make(map[pieceKey][]parsed, len(pieces))
	for i, key := range keys {
		f.cache[key] = results[i]
	}
	return results, false
}

// unsplit replaces the items of each List with the List's document.
func unsplit(pieces []piece) []piece {
	var uncut []piece
	for _, p := range pieces {
		switch {
		case p.item == 0:
			uncut = append(uncut, p)
		case p.item == 1:
			uncut = append(uncut, *p.of)
		}
	}
	return uncut
}
