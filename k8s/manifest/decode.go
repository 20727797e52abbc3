package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// Bounds of the problems reported for one object.
const (
	maxPerDocument = 20  // errors, and warnings
	maxField       = 120 // bytes of the path of a field
)

// parsed is the result of parsing one object of a manifest. Its errors and warnings have no Where yet, because the same text may stand
// in several places.
type parsed struct {
	offset   int        // position in the piece: 1-based if the piece holds a List, else 0
	ref      k8s.Ref    // the zero Ref if the object cannot be named
	object   k8s.Object // nil if there are errors
	errors   []k8s.Warning
	warnings []k8s.Warning
	syntax   bool // the error is the YAML library's and may have line numbers, counted from the start of the document
}

// failed returns a parsed for an error that occurred before the object could be named.
func failed(message string) parsed {
	return parsed{errors: []k8s.Warning{{Text: brief.Line(message)}}}
}

// apiVersions maps each supported kind to its supported version.
var apiVersions = map[k8s.Kind]string{
	k8s.KindService:       v1.SchemeGroupVersion.String(),
	k8s.KindNode:          v1.SchemeGroupVersion.String(),
	k8s.KindEndpointSlice: discoveryv1.SchemeGroupVersion.String(),
	k8s.KindServiceCIDR:   networkingv1.SchemeGroupVersion.String(),
}

// parse decodes a piece. torn reports that the text is no YAML at all: if the piece is an item, it may have been
// cut out wrongly.
func (p *piece) parse() (results []parsed, torn bool) {
	if p.item > 0 && p.raw[0] == '{' && !json.Valid(p.raw) { // cut out of JSON by its brackets
		return nil, true
	}
	data, twice, err := toJSON(p.raw)
	if err != nil {
		what := "not valid YAML: "
		if bytes.HasPrefix(bytes.TrimSpace(p.raw), []byte("{")) {
			what = "neither valid JSON nor YAML: "
		}
		message, syntax := strings.CutPrefix(err.Error(), "yaml: ")
		f := failed(what + message)
		f.syntax = true
		return []parsed{f}, syntax // else a number or a key that JSON does not have
	}
	if p.item == 0 {
		return objectsOf(data, "", twice), false
	}
	if data[0] == '[' { // an item that was cut out of YAML keeps its dash
		var items []json.RawMessage
		if json.Unmarshal(data, &items) != nil || len(items) != 1 {
			return nil, true
		}
		data = items[0]
	}
	return unnested(objectsOf(data, p.list, twice)), false
}

// unnested refuses a List that is an item of a List itself.
func unnested(results []parsed) []parsed {
	if slices.ContainsFunc(results, func(r parsed) bool { return r.offset > 0 }) {
		return []parsed{failed("a List inside a List is not supported")}
	}
	return results
}

// toJSON returns a document as JSON, without space around it. twice reports a duplicate key: the JSON then has one of its
// values, so that the object can still be named.
func toJSON(raw []byte) (data []byte, twice, err error) {
	if looksJSON(raw) && json.Valid(raw) {
		return bytes.TrimSpace(raw), nil, nil
	}
	defer func() {
		if r := recover(); r != nil { // the YAML library has a history of panics on malformed input
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	data, err = yaml.YAMLToJSONStrict(raw)
	if err == nil {
		return data, nil, nil
	}
	list, repeated := strings.CutPrefix(err.Error(), "yaml: unmarshal errors:\n")
	if !repeated {
		return nil, nil, err
	}
	data, err = yaml.YAMLToJSON(raw)
	if err != nil || bytes.Contains(raw, []byte("<<:")) { // a key may override a merged one
		return data, nil, err
	}
	first, _, _ := strings.Cut(list, "\n")
	return data, errors.New(strings.Replace(first, "already set in map", "is given twice", 1)), nil
}

// head holds the fields that decide how an object is decoded.
type head struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      json.RawMessage `json:"items"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

func headOf(data []byte) (h head) {
	_ = kjson.UnmarshalCaseSensitivePreserveInts(data, &h) // a field of another type stays empty
	return h
}

// isList recognizes v1 List and the typed lists of the kinds that are read.
func (h *head) isList() bool {
	if h.Kind == "List" {
		return h.APIVersion == "v1" || h.APIVersion == ""
	}
	of, ok := strings.CutSuffix(h.Kind, "List")
	version, known := apiVersions[k8s.Kind(of)]
	return ok && known && (h.APIVersion == version || h.APIVersion == "")
}

// objectsOf returns the objects of a document: one, those of a List, or none if its kind is not one that is read.
// assumed is the kind of List that holds the document; it supplies kind and version if the document has none. twice becomes
// an error of each object.
func objectsOf(data []byte, assumed string, twice error) []parsed {
	switch {
	case string(data) == "null" && assumed == "":
		return nil
	case data[0] != '{':
		return []parsed{failed("expected a Kubernetes object, got " + describe(data))}
	}
	h := headOf(data)
	if listed := k8s.Kind(strings.TrimSuffix(assumed, "List")); h.Kind == "" && apiVersions[listed] != "" {
		h.Kind, h.APIVersion = string(listed), apiVersions[listed]
	}
	want, known := apiVersions[k8s.Kind(h.Kind)]
	group, _, _ := strings.Cut(want, "/")
	bad := func(field, format string, args ...any) []k8s.Warning {
		return []k8s.Warning{{Object: h.Kind, Field: field, Text: fmt.Sprintf(format, args...)}}
	}
	switch {
	case h.Kind == "":
		return []parsed{{errors: bad("kind", "is missing: not a Kubernetes object")}}
	case h.isList():
		return listItems(&h, twice, bad)
	case !known:
		return nil
	case h.APIVersion == "":
		return []parsed{{errors: bad("apiVersion", "is missing: expected %s", want)}}
	case h.APIVersion == want:
		return []parsed{objectOf(data, &h, twice)}
	case group != want && strings.HasPrefix(h.APIVersion, group+"/"), group == want && !strings.Contains(h.APIVersion, "/"):
		return []parsed{{warnings: bad("apiVersion", "%s is not supported: ignored, use %s", brief.Quote(h.APIVersion), want)}}
	}
	return nil // the same kind of another API group
}

func listItems(h *head, twice error, bad func(field, format string, args ...any) []k8s.Warning) (all []parsed) {
	if len(h.Items) == 0 || string(h.Items) == "null" {
		return nil
	}
	var items []json.RawMessage
	if json.Unmarshal(h.Items, &items) != nil {
		return []parsed{{errors: bad("items", "expected a list, got %s", describe(h.Items))}}
	}
	for i, item := range items {
		for _, p := range unnested(objectsOf(item, h.Kind, twice)) {
			p.offset = i + 1
			all = append(all, p)
		}
	}
	return all
}

// objectOf decodes one object of a supported kind, applies the API server's defaults, and validates it as the API server would.
func objectOf(data []byte, h *head, twice error) parsed {
	kind := k8s.Kind(h.Kind)
	o := kind.New()
	p := parsed{object: o, syntax: twice != nil}
	if twice != nil {
		p.errors = append(p.errors, k8s.Warning{Text: brief.Line(twice.Error())})
	}
	strict, err := kjson.UnmarshalStrict(data, o)
	if err != nil { // the object may be incomplete
		o.SetName(h.Metadata.Name)
		o.SetNamespace(h.Metadata.Namespace)
		p.errors = append(p.errors, typeError(data, kind, err))
	}
	for _, e := range strict[:min(len(strict), maxPerDocument)] {
		path := e.(kjson.FieldError).FieldPath()
		if strings.HasPrefix(e.Error(), "duplicate") {
			p.errors = append(p.errors, k8s.Warning{Field: fieldText(path), Text: "is given twice"})
		} else {
			p.warnings = append(p.warnings, k8s.Warning{Field: fieldText(path), Text: "unknown field" + spelling(reflect.TypeOf(o), path) + ": ignored"})
		}
	}
	setDefaults(o)
	if len(p.errors) == 0 {
		var hints []k8s.Warning
		p.errors, hints = validate(o)
		p.warnings = append(p.warnings, hints...)
	}
	p.ref, _ = k8s.RefOf(o)
	name := brief.Cut(p.ref.String(), 300) // longer than any valid one
	if p.ref.Name == "" {
		p.ref, name = k8s.Ref{}, string(kind)
	}
	for _, list := range [][]k8s.Warning{p.errors, p.warnings} {
		for i := range list {
			list[i].Object = name
		}
	}
	if len(p.errors) > 0 {
		p.object = nil
	}
	return p
}

// typeError returns the error about the first field whose value does not have the field's type. The decoder's own error has
// no indexes, and for types that decode themselves, such as times, no field.
func typeError(data []byte, kind k8s.Kind, err error) k8s.Warning {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var tree any
	if d.Decode(&tree) != nil {
		return k8s.Warning{Text: brief.Line(err.Error())}
	}
	path, value, found := culprit("", tree, func(v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return kjson.UnmarshalCaseSensitivePreserveInts(data, kind.New())
	})
	if found == nil { // a key given twice hides it
		found = err
	}
	w := k8s.Warning{Field: fieldText(path), Text: brief.Line(found.Error())}
	got, _ := json.Marshal(value)
	if noTime := (*time.ParseError)(nil); errors.As(found, &noTime) {
		w.Text = "expected a time such as 2026-01-02T15:04:05Z, got " + describe(got)
	}
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(found, &mismatch) {
		w.Text = "expected " + expected(mismatch.Type) + ", got " + describe(got)
		switch _, number := value.(json.Number); {
		case mismatch.Type.Kind() == reflect.String && got[0] != '{' && got[0] != '[':
			w.Text += " (put it into quotes)"
		case number && mismatch.Type.Kind() == reflect.Int32:
			w.Text = "expected a whole number of 32 bits, got " + describe(got)
		}
	}
	return w
}

// culprit returns the path of the innermost value that alone keeps decode from succeeding, the value, and the error.
func culprit(path string, value any, decode func(any) error) (string, any, error) {
	switch v := value.(type) {
	case map[string]any:
		if err := decode(map[string]any{}); err != nil {
			return path, value, err
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			one := func(value any) error { return decode(map[string]any{key: value}) }
			if one(v[key]) != nil {
				return culprit(strings.TrimPrefix(path+"."+key, "."), v[key], one)
			}
		}
	case []any:
		if err := decode([]any{}); err != nil {
			return path, value, err
		}
		for i, e := range v {
			one := func(value any) error { return decode([]any{value}) }
			if one(e) != nil {
				return culprit(fmt.Sprintf("%s[%d]", path, i), e, one)
			}
		}
	}
	return path, value, decode(value)
}

// fieldText returns a path for a message: keys of a file may be long, or contain control characters.
func fieldText(path string) string {
	short := brief.Cut(path, maxField)
	if len(short) < len(path) {
		short += "..."
	}
	return strings.Trim(strconv.Quote(short), `"`)
}

// spelling returns a hint if the last field of a path differs from a field of its struct only in case.
func spelling(t reflect.Type, path string) string {
	name := ""
	for step := range strings.SplitSeq(path, ".") {
		step, _, _ = strings.Cut(step, "[")
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return ""
		}
		name = ""
		for _, f := range reflect.VisibleFields(t) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" && strings.EqualFold(tag, step) {
				name, t = tag, f.Type
				break
			}
		}
		if name == "" {
			return ""
		}
	}
	return " (did you mean " + name + "?)"
}

// describe returns a JSON value for a message, cut short.
func describe(value []byte) string {
	value = bytes.TrimSpace(value)
	switch {
	case bytes.HasPrefix(value, []byte("{")):
		return "an object"
	case bytes.HasPrefix(value, []byte("[")):
		return "a list"
	}
	var s string
	if string(value) != "null" && json.Unmarshal(value, &s) == nil {
		return brief.Quote(s)
	}
	return brief.Cut(string(value), maxField)
}

// expected returns what a field of a type accepts, for a message.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
