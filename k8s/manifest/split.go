package manifest

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
)

// piece is a part of a manifest that can be parsed by itself: a YAML or JSON document, or an item of a List that
// was cut out of its document. Cutting lets items be parsed in parallel, and only those that changed.
type piece struct {
	raw      []byte
	document int    // 1-based
	item     int    // 1-based position in the List; 0: raw is a whole document
	list     string // kind of that List
	of       *piece // the document that an item was cut out of
	line     int    // 1-based line of the file where raw starts; for an item of JSON: where its document starts
}

// split cuts a file into documents, and Lists in block style into their items.
func split(data []byte) []piece {
	var pieces []piece
	documents, line, counted := 0, 1, 0
	for _, d := range splitYAML(data) {
		line += bytes.Count(data[counted:d.start], []byte("\n"))
		counted = d.start
		raws := [][]byte{d.raw}
		items, list := cutItems(d.raw)
		if items == nil {
			raws = splitJSON(d.raw)
		}
		for _, raw := range raws {
			documents++
			whole := piece{raw: raw, document: documents, line: line}
			if len(raws) > 1 {
				items, list = cutItems(raw)
			}
			if items == nil {
				pieces = append(pieces, whole)
			}
			at, itemLine := 0, line
			for i, item := range items {
				start := at + max(0, bytes.Index(raw[at:], item))
				itemLine += bytes.Count(raw[at:start], []byte("\n"))
				pieces = append(pieces, piece{raw: item, document: documents, item: i + 1, list: list, of: &whole, line: itemLine})
				itemLine += bytes.Count(item, []byte("\n"))
				at = min(start+len(item), len(raw))
			}
		}
	}
	return pieces
}

// cutItems returns the items of a document that is a List in JSON or in block style, and the kind of the List; nil
// if it is none.
func cutItems(doc []byte) (items [][]byte, list string) {
	if looksJSON(doc) {
		// A key with escapes could mean "items", too.
		if header, items, ok := splitJSONList(doc); ok && json.Valid(header) && !bytes.ContainsRune(header, '\\') {
			if h := headOf(header); h.isList() && string(h.Items) == "[]" {
				return items, h.Kind
			}
		}
	}
	if !bytes.Contains(doc, []byte("items:")) {
		return nil, ""
	}
	header, items, ok := splitList(doc)
	if !ok {
		return nil, ""
	}
	data, twice, err := toJSON(header)
	if err != nil || twice != nil {
		return nil, ""
	}
	h := headOf(data)
	if !h.isList() {
		return nil, ""
	}
	return items, h.Kind
}

// looksJSON reports whether a document can be a JSON object.
func looksJSON(doc []byte) bool {
	text := bytes.TrimSpace(doc)
	return len(text) > 0 && text[0] == '{' && text[len(text)-1] == '}'
}

// splitJSON cuts JSON objects that follow each other without a marker; any other text comes back whole.
func splitJSON(doc []byte) [][]byte {
	if !looksJSON(doc) || json.Valid(doc) {
		return [][]byte{doc}
	}
	var values [][]byte
	for d := json.NewDecoder(bytes.NewReader(doc)); ; {
		var value json.RawMessage
		switch err := d.Decode(&value); {
		case err == io.EOF:
			return values
		case err != nil:
			return [][]byte{doc}
		}
		values = append(values, value)
	}
}

// splitJSONList cuts a List in JSON, in one pass, because decoding one of 100 MB takes seconds: header is the document without the items.
// It looks at brackets and strings only. If header and items are valid JSON, so was the document.
func splitJSONList(doc []byte) (header []byte, items [][]byte, ok bool) {
	const list = 2 // depth inside the items' brackets
	depth, start, inside := 0, 0, false
	comma := true // an item may start
	var key []byte
	for at := 0; at < len(doc); at++ {
		switch c := doc[at]; c {
		case '"':
			end := stringEnd(doc, at)
			if end < 0 || inside && depth == list {
				return nil, nil, false
			}
			if depth == 1 {
				key = doc[at:end]
			}
			at = end - 1
		case '{', '[':
			depth++
			switch {
			case inside && depth == list+1:
				if c != '{' || !comma {
					return nil, nil, false
				}
				start, comma = at, false
			case c == '[' && depth == list && string(key) == `"items"`:
				if header != nil {
					return nil, nil, false
				}
				header, inside = doc[:at+1:at+1], true
			}
		case '}', ']':
			depth--
			switch {
			case inside && depth == list:
				items = append(items, doc[start:at+1])
			case inside && depth < list:
				if c != ']' || comma {
					return nil, nil, false
				}
				header, inside = append(header, doc[at:]...), false
			}
		case ',':
			if inside && depth == list {
				if comma {
					return nil, nil, false
				}
				comma = true
			}
		case ' ', '\t', '\r', '\n':
		default:
			if inside && depth == list {
				return nil, nil, false
			}
		}
	}
	return header, items, header != nil && !inside && depth == 0
}

// stringEnd returns where a JSON string that starts at a position has ended; -1: nowhere.
func stringEnd(doc []byte, start int) int {
	for at := start + 1; ; at++ {
		i := bytes.IndexByte(doc[at:], '"')
		if i < 0 {
			return -1
		}
		at += i
		escapes := 0
		for doc[at-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at + 1
		}
	}
}

// document is the text of a YAML document and where it starts in its file.
type document struct {
	raw   []byte
	start int
}

// splitYAML cuts a file at its document markers. Text before the first marker is a document only if there
// is something in it other than comments and directives.
func splitYAML(data []byte) []document {
	var documents []document
	start, marked, content := 0, false, false
	end := func(at int) {
		if marked || content {
			documents = append(documents, document{data[start:at], start})
		}
		content = false
	}
	for at := 0; at < len(data); {
		line, next := lineAt(data, at)
		switch {
		case isMarker(line, "---"):
			end(at)
			start, marked = at+3, true
			content = len(bytes.TrimSpace(line[3:])) > 0
		case isMarker(line, "..."):
			end(at)
			start, marked = next, false
		case !content:
			text := bytes.TrimSpace(line)
			directive := !marked && len(line) > 0 && line[0] == '%'
			if directive || len(text) > 0 && text[0] == '#' {
				break
			}
			content = len(text) > 0
			if content && !marked {
				start = at
			}
		}
		at = next
	}
	end(len(data))
	return documents
}

// lineAt returns the line that starts at a position, without its end, and where the next one starts.
func lineAt(data []byte, at int) (line []byte, next int) {
	if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
		return data[at : at+i], at + i + 1
	}
	return data[at:], len(data)
}

func isMarker(line []byte, marker string) bool {
	if len(line) < 3 || string(line[:3]) != marker {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r'
}

// splitList cuts a YAML document that is a List in block style into its items. The header is the document
// without them; ok is false if the document does not look like that.
func splitList(doc []byte) (header []byte, items [][]byte, ok bool) {
	const (
		before = iota
		first  // after "items:", before the first item
		inside
		after
	)
	state, indent, start := before, 0, 0
	for at := 0; at < len(doc); {
		line, next := lineAt(doc, at)
		text := bytes.TrimLeft(line, " ")
		depth := len(line) - len(text)
		text = bytes.TrimRight(text, " \t\r")
		blank := len(text) == 0 || text[0] == '#'
		dash := len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ')
		switch state {
		case before, after:
			if depth == 0 && isItemsKey(text) {
				if state == after {
					return nil, nil, false
				}
				state = first
				break
			}
			header = append(header, doc[at:next]...)
		case first:
			if blank {
				break
			}
			if !dash {
				return nil, nil, false
			}
			state, indent, start = inside, depth, at
		case inside:
			switch {
			case blank || depth > indent:
			case depth == indent && dash:
				items = append(items, doc[start:at])
				start = at
			case depth == 0:
				items = append(items, doc[start:at])
				state = after
				continue // process this line again
			default:
				return nil, nil, false
			}
		}
		at = next
	}
	if state == inside {
		items = append(items, doc[start:])
	}
	return header, items, len(items) > 0
}

func isItemsKey(text []byte) bool {
	rest, ok := strings.CutPrefix(string(text), "items:")
	rest = strings.TrimLeft(rest, " \t")
	return ok && (rest == "" || rest[0] == '#')
}
