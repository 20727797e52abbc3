package manifest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"time"
	"unicode/utf8"

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
	info   os.FileInfo // as of the last read; nil: it could not be read
	read   time.Time   // of the last read
	digest [sha256.Size]byte

	objects  []located           // valid now, in the order of the file
	kept     map[k8s.Ref]located // not valid, not readable or ambiguous now: the last good state
	errors   []k8s.Warning
	warnings []k8s.Warning
}

// unsettled is how long after its last change a file is read again at each look: a change within the
// resolution of the file system's times could not be seen otherwise.
const unsettled = 2 * time.Second

// update reads the file if it was reported as changed, or may have changed since it was read.
func (f *file) update(reported bool) {
	now := time.Now()
	info, err := os.Stat(f.path)
	if err == nil && !reported && f.info != nil &&
		os.SameFile(info, f.info) && info.Size() == f.info.Size() &&
		info.ModTime().Equal(f.info.ModTime()) && f.read.Sub(info.ModTime()) > unsettled {
		return
	}
	f.read = now

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
		f.kept, f.objects = f.lastGood(), nil
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

// parse replaces the objects and problems of the file by those of a text.
func (f *file) parse(data []byte) {
	d := decode(f.path, data)
	before := f.lastGood()
	f.objects, f.errors, f.warnings = d.objects, d.errors, d.warnings

	// An object with errors keeps its last good state. One whose name is not known may be any of those that
	// were there. One with several definitions stays as it was, too.
	definitions := map[k8s.Ref]int{}
	for _, o := range f.objects {
		definitions[o.ref]++
	}
	f.kept = map[k8s.Ref]located{}
	for ref, o := range before {
		if n := definitions[ref]; n > 1 || n == 0 && (d.nameless || d.invalid[ref]) {
			f.kept[ref] = o
		}
	}
}

// lastGood returns the last good state of each object of the file; of several definitions the first.
func (f *file) lastGood() map[k8s.Ref]located {
	all := maps.Clone(f.kept)
	if all == nil {
		all = map[k8s.Ref]located{}
	}
	for _, o := range f.objects {
		if _, ok := all[o.ref]; !ok {
			all[o.ref] = o
		}
	}
	return all
}

// atMost truncates a list to maxPerFile.
func (f *file) atMost(list []k8s.Warning, what string) []k8s.Warning {
	if len(list) <= maxPerFile {
		return list
	}
	more := fmt.Sprintf("and %d more %s", len(list)-maxPerFile, what)
	return append(list[:maxPerFile:maxPerFile], k8s.Warning{Where: f.path, Text: more})
}
