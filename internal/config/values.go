package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// leaf is a field that holds a value, at its place in a configuration type.
type leaf struct {
	path  string // as a file writes it, for example ovs.bridge
	index []int
	tag   reflect.StructTag
}

// leaves lists the fields of a configuration type in its order, but apiVersion and kind.
func leaves(t reflect.Type) []leaf {
	var all []leaf
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case len(f.Index) > 1 || name == "-" || f.Type == reflect.TypeFor[metav1.TypeMeta]():
		case f.Type.Kind() == reflect.Struct && !isValue(f.Type):
			for _, below := range leaves(f.Type) {
				// an embedded struct without a name has its fields in its parent, as encoding/json reads it
				if name != "" {
					below.path = name + "." + below.path
				}
				below.index = append(slices.Clone(f.Index), below.index...)
				all = append(all, below)
			}
		default:
			all = append(all, leaf{path: name, index: f.Index, tag: f.Tag})
		}
	}
	return all
}

// isValue reports whether a struct type stands for one value in a file.
func isValue(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return ok
}

// auto is the third value of a flag that is true or false otherwise: nkp decides. In a file such a field is
// left out.
const auto = "auto"

// textOf returns a value as a flag takes it; ok is false if it is not set: a nil pointer, an empty string or
// list.
func textOf(v reflect.Value) (text string, ok bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "", false
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case metav1.Duration:
		return x.Duration.String(), true
	case logsapi.TimeOrMetaDuration:
		return x.Duration.Duration.String(), true
	case resource.QuantityValue:
		return x.Quantity.String(), true
	case []string:
		return strings.Join(x, ","), len(x) > 0
	case map[string]bool:
		return Gates(x).String(), len(x) > 0
	}
	text = fmt.Sprint(v.Interface())
	return text, v.Kind() != reflect.String || text != ""
}

// setText sets a value to the text of a flag.
func setText(v reflect.Value, text string) error {
	switch x := v.Addr().Interface().(type) {
	case *[]string:
		*x = nil
		if text != "" {
			*x = strings.Split(text, ",")
		}
		return nil
	case *map[string]bool:
		*x = nil
		return (*Gates)(x).Set(text)
	}

	t := v.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
		if v.SetZero(); t.Kind() == reflect.Bool && text == auto {
			return nil
		}
	}
	data := []byte(text)
	switch t.Kind() {
	case reflect.String:
		v.SetString(text)
		return nil
	case reflect.Struct: // durations and quantities are strings in JSON
		data = strconv.AppendQuote(nil, text)
	}
	return json.Unmarshal(data, v.Addr().Interface())
}

// GateExternalIPs is the only feature gate of kube-proxy's that nkp supports. It decides whether externalIPs
// are served.
const GateExternalIPs = "AllowServiceExternalIPs"

// Gates is a flag of feature gates. Set adds to it.
type Gates map[string]bool

// Type is part of pflag.Value.
func (g *Gates) Type() string { return "NAME=BOOL,..." }

// String returns the gates as Set takes them, sorted.
func (g Gates) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		list = append(list, fmt.Sprintf("%s=%t", name, g[name]))
	}
	return strings.Join(list, ",")
}

// Set is part of pflag.Value.
func (g *Gates) Set(text string) error {
	if *g == nil {
		*g = Gates{}
	}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%q is not NAME=true or NAME=false", part)
		}
		(*g)[strings.TrimSpace(name)] = on
	}
	return nil
}
