package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

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
	maxPerObject = 20  // errors, and warnings
	maxField     = 120 // bytes of the path of a field
)

// apiVersions maps each supported kind to its supported version.
var apiVersions = map[k8s.Kind]string{
	k8s.KindService:       v1.SchemeGroupVersion.String(),
	k8s.KindNode:          v1.SchemeGroupVersion.String(),
	k8s.KindEndpointSlice: discoveryv1.SchemeGroupVersion.String(),
	k8s.KindServiceCIDR:   networkingv1.SchemeGroupVersion.String(),
}

// decoder collects the objects of a file and the problems of those that cannot be used.
type decoder struct {
	origin   k8s.Origin       // of the object being decoded
	objects  []located        // in the order of the file; an object may have several definitions
	invalid  map[k8s.Ref]bool // objects with errors
	nameless bool             // an object has errors, and its name is not known
	errors   []k8s.Warning
	warnings []k8s.Warning
}

// decode decodes the text of a file.
func decode(path string, data []byte) *decoder {
	d := &decoder{invalid: map[k8s.Ref]bool{}}
	for i, doc := range documents(data) {
		d.origin = k8s.Origin{File: path, Document: i + 1}
		data, err := toJSON(doc.text)
		if err != nil {
			d.fail("", "", "%s", syntaxError(err, doc.line))
			continue
		}
		d.decodeObject(data, "")
	}
	return d
}

// fail records an error before the name of its object is known.
func (d *decoder) fail(object, field, format string, args ...any) {
	d.nameless = true
	d.errors = append(d.errors, d.warning(object, field, fmt.Sprintf(format, args...)))
}

func (d *decoder) warning(object, field, text string) k8s.Warning {
	return k8s.Warning{Where: d.origin.String(), Object: object, Field: field, Text: text}
}

// toJSON returns a document as JSON. A key that is there twice is an error.
func toJSON(text []byte) (data []byte, err error) {
	if isJSON(text) {
		return bytes.TrimSpace(text), nil
	}
	defer func() {
		if r := recover(); r != nil { // the YAML library has a history of panics on malformed input
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	data, err = yaml.YAMLToJSONStrict(text)
	if err != nil && bytes.Contains(text, []byte("<<:")) { // a key may override a merged one
		return yaml.YAMLToJSON(text)
	}
	return data, err
}

// yamlLine finds the line numbers in an error of the YAML library, which counts from the start of the
// document.
var yamlLine = regexp.MustCompile(`line \d+`)

// syntaxError returns the message about a document that starts at a line of its file.
func syntaxError(err error, line int) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n") // of duplicate keys; the first is enough
	text, _, _ = strings.Cut(text, "\n")
	text = yamlLine.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(s, "line "))
		if err != nil {
			return s
		}
		return fmt.Sprintf("line %d", n+line-1)
	})
	return brief.Line("not valid YAML: " + text)
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

// isList recognizes v1 List and the typed lists of the kinds that are read.
func (h *head) isList() bool {
	if h.Kind == "List" {
		return h.APIVersion == "v1" || h.APIVersion == ""
	}
	of, ok := strings.CutSuffix(h.Kind, "List")
	version, known := apiVersions[k8s.Kind(of)]
	return ok && known && (h.APIVersion == version || h.APIVersion == "")
}

// decodeObject decodes an object, or the items of a List. Kinds that are not read are skipped. listKind is
// the kind of the List that holds the object, which supplies kind and version if the object has none; "": it
// is in no List.
func (d *decoder) decodeObject(data []byte, listKind string) {
	switch {
	case string(data) == "null" && listKind == "":
		return
	case data[0] != '{':
		d.fail("", "", "expected a Kubernetes object, got %s", describe(data))
		return
	}
	var h head
	_ = kjson.UnmarshalCaseSensitivePreserveInts(data, &h) // a field of another type stays empty
	if listed := k8s.Kind(strings.TrimSuffix(listKind, "List")); h.Kind == "" && apiVersions[listed] != "" {
		h.Kind, h.APIVersion = string(listed), apiVersions[listed]
	}

	want, known := apiVersions[k8s.Kind(h.Kind)]
	group, _, _ := strings.Cut(want, "/")
	switch {
	case h.Kind == "":
		d.fail("", "kind", "is missing: not a Kubernetes object")
	case h.isList() && listKind != "":
		d.fail("", "", "a List inside a List is not supported")
	case h.isList():
		d.decodeItems(&h)
	case !known:
	case h.APIVersion == "":
		d.fail(h.Kind, "apiVersion", "is missing: expected %s", want)
	case h.APIVersion == want:
		d.decodeKnown(data, &h)
	case group != want && strings.HasPrefix(h.APIVersion, group+"/"),
		group == want && !strings.Contains(h.APIVersion, "/"):
		text := fmt.Sprintf("%s is not supported: ignored, use %s", brief.Quote(h.APIVersion), want)
		d.warnings = append(d.warnings, d.warning(h.Kind, "apiVersion", text))
	} // else it is the same kind of another API group
}

func (d *decoder) decodeItems(h *head) {
	if len(h.Items) == 0 {
		return
	}
	var items []json.RawMessage
	if json.Unmarshal(h.Items, &items) != nil {
		d.fail(h.Kind, "items", "expected a list, got %s", describe(h.Items))
		return
	}
	for i, item := range items {
		d.origin.Item = i + 1
		d.decodeObject(item, h.Kind)
	}
}

// decodeKnown decodes one object of a supported kind, sets its defaults and validates it.
func (d *decoder) decodeKnown(data []byte, h *head) {
	kind := k8s.Kind(h.Kind)
	o := kind.New()
	strict, err := kjson.UnmarshalStrict(data, o)
	if err != nil { // the object may be incomplete
		o.SetName(h.Metadata.Name)
		o.SetNamespace(h.Metadata.Namespace)
	}
	setDefaults(o)

	ref, _ := k8s.RefOf(o)
	name := brief.Cut(ref.String(), 300) // longer than any valid one
	if ref.Name == "" {
		ref, name = k8s.Ref{}, h.Kind
	}
	var errs []k8s.Warning
	if err != nil {
		field, text := typeError(data, kind, err)
		errs = append(errs, d.warning(name, field, text))
	}
	for i, e := range strict {
		field := fieldText(e.(kjson.FieldError).FieldPath())
		if strings.HasPrefix(e.Error(), "duplicate") {
			errs = append(errs, d.warning(name, field, "is there twice"))
		} else if i < maxPerObject {
			d.warnings = append(d.warnings, d.warning(name, field, "unknown field: ignored"))
		}
	}
	if len(errs) == 0 {
		for _, e := range validate(o) {
			errs = append(errs, d.warning(name, e.Field, brief.Line(e.ErrorBody())))
		}
	}
	d.add(ref, o, name, errs)
}

// add takes an object into the result, or its errors.
func (d *decoder) add(ref k8s.Ref, o k8s.Object, name string, errs []k8s.Warning) {
	if more := len(errs) - maxPerObject; more > 0 {
		errs = append(errs[:maxPerObject], d.warning(name, "", fmt.Sprintf("and %d more errors", more)))
	}
	d.errors = append(d.errors, errs...)

	switch {
	case len(errs) == 0:
		d.objects = append(d.objects, located{ref, o, d.origin})
	case ref == k8s.Ref{}:
		d.nameless = true
	default:
		d.invalid[ref] = true
	}
}

// typeError returns the path of the first field whose value does not have the field's type, and a message.
// The decoder's own error has no indexes, and for types that decode themselves, such as times, no field.
func typeError(data []byte, kind k8s.Kind, err error) (field, text string) {
	var tree any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&tree) != nil {
		return "", brief.Line(err.Error())
	}
	path, value, found := culprit("", tree, func(v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return kjson.UnmarshalCaseSensitivePreserveInts(data, kind.New())
	})
	if found == nil { // a duplicate key hides it
		found = err
	}

	mismatch := (*json.UnmarshalTypeError)(nil)
	if !errors.As(found, &mismatch) {
		return fieldText(path), brief.Line(found.Error())
	}
	got, _ := json.Marshal(value)
	text = "expected " + expected(mismatch.Type) + ", got " + describe(got)
	if mismatch.Type.Kind() == reflect.String && got[0] != '{' && got[0] != '[' {
		text += " (put it into quotes)"
	}
	return fieldText(path), text
}

// culprit returns the path of the innermost value that alone keeps decode from succeeding, the value, and the
// error.
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

// describe returns a JSON value for a message, cut short.
func describe(value []byte) string {
	var s string
	switch {
	case value[0] == '{':
		return "an object"
	case value[0] == '[':
		return "a list"
	case value[0] == '"' && json.Unmarshal(value, &s) == nil:
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
	case reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
