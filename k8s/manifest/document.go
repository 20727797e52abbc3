package manifest

import (
	"bytes"
	"encoding/json"
	"io"
)

// document is the text of one YAML document, or of one object of a JSON stream.
type document struct {
	text []byte
	line int // 1-based line of the file where the text starts; of a JSON stream: where the stream starts
}

// documents cuts a file at YAML's markers, "---" and "...". What stands before the first marker, or after
// "...", is a document only if it has more than comments and directives.
func documents(data []byte) []document {
	var all []document
	start, startLine, marked := 0, 1, false

	end := func(at int) {
		d := document{data[start:at], startLine}
		if marked || hasContent(d.text) {
			all = append(all, jsonObjects(d)...)
		}
	}
	at, number := 0, 1
	for line := range bytes.Lines(data) {
		switch {
		case isMarker(line, "---"):
			end(at)
			start, startLine, marked = at+len("---"), number, true
		case isMarker(line, "..."):
			end(at)
			start, startLine, marked = at+len(line), number+1, false
		}
		at += len(line)
		number++
	}
	end(len(data))

	return all
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// isJSON reports whether a text is a JSON object.
func isJSON(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && json.Valid(text)
}

// jsonObjects returns the objects of a stream of JSON objects without markers. Any other text is one
// document.
func jsonObjects(d document) []document {
	if !bytes.HasPrefix(bytes.TrimSpace(d.text), []byte("{")) || json.Valid(d.text) {
		return []document{d}
	}
	var all []document
	for stream := json.NewDecoder(bytes.NewReader(d.text)); ; {
		var object json.RawMessage
		switch err := stream.Decode(&object); {
		case err == io.EOF:
			return all
		case err != nil:
			return []document{d}
		}
		all = append(all, document{object, d.line})
	}
}
