package manifest

import (
	"bytes"
	"encoding/json"
	"unicode"
)

// document is the text of one YAML document, or of one object of a JSON stream.
type document struct {
	text []byte
	line int // 1-based line of the file where the text starts
}

// documents cuts a file at YAML's markers, "---" and "...". What stands before the first marker, or after
// "...", is a document only if it has more than comments and directives.
func documents(data []byte) []document {
	var all []document
	start, startLine, marked := 0, 1, false

	end := func(at int) {
		d := document{data[start:at], startLine}
		if marked || len(content(d.text)) > 0 {
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

// content returns a text without the blank lines, comments and directives that it starts with.
func content(text []byte) []byte {
	for {
		text = bytes.TrimLeftFunc(text, unicode.IsSpace)
		if len(text) == 0 || text[0] != '#' && text[0] != '%' {
			return text
		}
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
}

// isJSON reports whether a text is a JSON object.
func isJSON(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && json.Valid(text)
}

// jsonObjects returns the objects of a stream of JSON objects without markers. What does not continue the
// stream is one more document, because a YAML decoder would read the first object and ignore the rest. Any
// other text is one document.
func jsonObjects(d document) (all []document) {
	if isJSON(d.text) {
		return []document{d}
	}
	for {
		text := content(d.text)
		stream := json.NewDecoder(bytes.NewReader(text))
		var object json.RawMessage
		if !bytes.HasPrefix(text, []byte("{")) || stream.Decode(&object) != nil {
			break
		}

		start := len(d.text) - len(text)
		end := start + int(stream.InputOffset())
		all = append(all, document{object, d.line + bytes.Count(d.text[:start], []byte("\n"))})
		d = document{d.text[end:], d.line + bytes.Count(d.text[:end], []byte("\n"))}
	}
	if len(all) == 0 || len(content(d.text)) > 0 {
		all = append(all, d)
	}
	return all
}
