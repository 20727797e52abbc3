package k8s

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Bounds of what one document may ask for.
const (
	maxDepth       = 100     // nesting
	maxAliased     = 100_000 // nodes met through aliases, repetitions counted
	maxPerDocument = 20      // errors and warnings reported of one object
	maxField       = 120     // bytes of the path of a field in a message
)

// assigner puts the nodes of a YAML tree into the fields of an API object, under the rules of Kubernetes JSON.
// Unlike the decoders of encoding/json it goes on after an error, and knows the path of every field.
type assigner struct {
	path     []step
	errors   []Warning // Field and Text only
	warnings []Warning
	aliased  int // nodes met so far through aliases
	inAlias  int // aliases being followed now
	stopped  bool
}

// step is one element of a path: a field, or an index if name is "".
type step struct {
	name  string
	index int
}

func (a *assigner) field() string {
	var b strings.Builder
	for _, s := range a.path {
		name := cut(s.name, maxQuoted)
		switch {
		case s.name == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }):
			b.WriteString("[" + strings.Trim(strconv.Quote(name), `"`) + "]")
		case b.Len() > 0:
			b.WriteString("." + name)
		default:
			b.WriteString(name)
		}
	}
	if b.Len() > maxField {
		return cut(b.String(), maxField) + "..."
	}
	return b.String()
}

func (a *assigner) fail(format string, args ...any) {
	if len(a.errors) < maxPerDocument {
		a.errors = append(a.errors, Warning{Field: a.field(), Text: fmt.Sprintf(format, args...)})
	}
}

func (a *assigner) warn(format string, args ...any) {
	if len(a.warnings) < maxPerDocument {
		a.warnings = append(a.warnings, Warning{Field: a.field(), Text: fmt.Sprintf(format, args...)})
	}
}

// enter counts a node and follows it if it is an alias; leave must be called with what it returns.
// A nil node means that the bounds are exceeded.
func (a *assigner) enter(n *yaml.Node) (node *yaml.Node, aliases int) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
		aliases++
	}
	a.inAlias += aliases
	if a.inAlias > 0 {
		a.aliased++
	}
	if (a.aliased > maxAliased || len(a.path) > maxDepth) && !a.stopped {
		a.stopped = true
		if a.aliased > maxAliased {
			a.fail("the aliases of this document expand to more than %d values", maxAliased)
		} else {
			a.fail("nested deeper than %d levels", maxDepth)
		}
	}
	if a.stopped {
		return nil, aliases
	}
	return n, aliases
}

func (a *assigner) leave(aliases int) { a.inAlias -= aliases }

func (a *assigner) push(s step) { a.path = append(a.path, s) }
func (a *assigner) pop()        { a.path = a.path[:len(a.path)-1] }

var jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()

// assign puts a node into v. Null leaves v as it is.
func (a *assigner) assign(n *yaml.Node, v reflect.Value) {
	n, aliases := a.enter(n)
	defer a.leave(aliases)
	if n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if reflect.PointerTo(v.Type()).Implements(jsonUnmarshaler) {
		a.unmarshal(n, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		a.structure(n, v)
	case reflect.Map:
		a.mapping(n, v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			a.unmarshal(n, v)
			return
		}
		a.list(n, v)
	default:
		a.scalar(n, v)
	}
}

// fieldsOf gives the fields of a struct type by their JSON names.
func fieldsOf(t reflect.Type) map[string][]int {
	if m, ok := fieldCache.Load(t); ok {
		return m.(map[string][]int)
	}
	m := map[string][]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			for inner, index := range fieldsOf(f.Type) {
				m[inner] = append([]int{i}, index...)
			}
		case name == "":
			m[f.Name] = []int{i}
		default:
			m[name] = []int{i}
		}
	}
	fieldCache.Store(t, m)
	return m
}

var fieldCache sync.Map // reflect.Type -> map[string][]int

func (a *assigner) structure(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		a.fail("expected an object, got %s", describe(n))
		return
	}
	fields := fieldsOf(v.Type())
	a.pairs(n, func(key string, value *yaml.Node) {
		index, ok := fields[key]
		if !ok {
			if len(a.warnings) < maxPerDocument {
				a.warn("unknown field%s: ignored", didYouMean(fields, key))
			}
			return
		}
		a.assign(value, v.FieldByIndex(index))
	})
}

// didYouMean names the field that is spelt alike but for upper and lower case.
func didYouMean(fields map[string][]int, key string) string {
	for name := range fields {
		if strings.EqualFold(name, key) {
			return " (did you mean " + name + "?)"
		}
	}
	return ""
}

func (a *assigner) mapping(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		a.fail("expected an object, got %s", describe(n))
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	a.pairs(n, func(key string, value *yaml.Node) {
		e := reflect.New(v.Type().Elem()).Elem()
		a.assign(value, e)
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
	})
	v.Set(m)
}

func (a *assigner) list(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		a.fail("expected a list, got %s", describe(n))
		return
	}
	if a.inAlias > 0 && a.aliased+len(n.Content) > maxAliased {
		a.aliased = maxAliased // the next node is one too many
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		a.push(step{index: i})
		a.assign(e, s.Index(i))
		a.pop()
		if a.stopped {
			return
		}
	}
	v.Set(s)
}

// pairs calls do for every key of a mapping, merged ones (<<) last, with the path set to the key.
func (a *assigner) pairs(n *yaml.Node, do func(key string, value *yaml.Node)) {
	a.mergedPairs(n, &keySet{}, 0, do)
}

// keySet remembers the keys of a mapping; few of them in a list, which is the common case and quick.
type keySet struct {
	few  [16]string
	n    int
	many map[string]bool
}

// add reports whether the key is new.
func (k *keySet) add(key string) bool {
	if slices.Contains(k.few[:k.n], key) || k.many[key] {
		return false
	}
	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	if k.many == nil {
		k.many = map[string]bool{}
	}
	k.many[key] = true
	return true
}

func (a *assigner) mergedPairs(n *yaml.Node, seen *keySet, depth int, do func(key string, value *yaml.Node)) {
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content) && !a.stopped; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			a.fail("a key must be a text, got %s", describe(key))
			continue
		}
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		a.push(step{name: key.Value})
		switch {
		case seen.add(key.Value):
			do(key.Value, value)
		case depth == 0:
			a.fail("is given twice")
		}
		a.pop()
	}
	for len(merged) > 0 && !a.stopped {
		m, aliases := a.enter(merged[0])
		merged = merged[1:]
		switch {
		case m == nil:
		case m.Kind == yaml.SequenceNode:
			merged = append(slices.Clone(m.Content), merged...)
		case m.Kind == yaml.MappingNode && depth < maxDepth:
			a.mergedPairs(m, seen, depth+1, do)
		default:
			a.fail("<< expects an object, got %s", describe(m))
		}
		a.leave(aliases)
	}
}

// unmarshal hands a node as JSON to a type that reads itself.
func (a *assigner) unmarshal(n *yaml.Node, v reflect.Value) {
	value := a.plain(n)
	text, err := json.Marshal(value)
	if err == nil && !a.stopped {
		err = json.Unmarshal(text, v.Addr().Interface())
	}
	if err != nil {
		a.fail("expected %s, got %s", expected(v.Type()), describe(n))
	}
}

// plain gives a node as encoding/json would: maps, slices, strings, numbers, booleans and nil.
func (a *assigner) plain(n *yaml.Node) any {
	n, aliases := a.enter(n)
	defer a.leave(aliases)
	if n == nil {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		a.pairs(n, func(key string, value *yaml.Node) { m[key] = a.plain(value) })
		return m
	case yaml.SequenceNode:
		var list []any
		for i, e := range n.Content {
			a.push(step{index: i})
			list = append(list, a.plain(e))
			a.pop()
		}
		return list
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		b, _ := parseBool(n.Value)
		return b
	case "!!int":
		if i, err := parseInt(n.Value); err == nil {
			return i
		}
	case "!!float":
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	}
	return n.Value
}

// scalar puts a text, number or boolean into v.
func (a *assigner) scalar(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		a.fail("expected %s, got %s", expected(v.Type()), describe(n))
		return
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String:
		switch tag {
		case "!!int", "!!float", "!!bool":
			a.fail("expected a string, got %s (put it into quotes)", describe(n))
		default:
			v.SetString(n.Value)
		}
	case reflect.Bool:
		b, ok := parseBool(n.Value)
		if !ok || n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			a.fail("expected true or false, got %s", describe(n))
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := parseInt(n.Value)
		switch {
		case tag == "!!int" && (err != nil || v.OverflowInt(i)):
			a.fail("%s is out of range for a %d-bit number", cut(n.Value, maxQuoted), v.Type().Bits())
		case tag == "!!float":
			a.fail("expected a whole number, got %s", describe(n))
		case tag != "!!int":
			a.fail("expected a number, got %s", describe(n))
		default:
			v.SetInt(i)
		}
	default:
		a.fail("has a type that is not supported: %s", v.Type())
	}
}

// parseBool reads the booleans of YAML 1.1, as kubectl does.
func parseBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "true", "yes", "on", "y":
		return true, true
	case "false", "no", "off", "n":
		return false, true
	}
	return false, false
}

func parseInt(s string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, 64)
}

// describe tells in a message what was found instead.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "null"
	case "!!int", "!!float", "!!bool":
		return cut(n.Value, maxQuoted)
	}
	return quote(n.Value)
}

// expected tells in a message what a field takes.
func expected(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time such as 2026-01-02T15:04:05Z"
	case reflect.TypeFor[intstr.IntOrString]():
		return "a number or a string"
	case reflect.TypeFor[resource.Quantity]():
		return "a quantity such as 500m or 2Gi"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a number"
	case reflect.Slice:
		return "a base64 string"
	}
	return "an object"
}
