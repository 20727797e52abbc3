package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

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
		case len(f.Index) > 1 || name == "-" || name == "apiVersion" || name == "kind" || f.Anonymous && name == "" && f.Type == reflect.TypeFor[metav1.TypeMeta]():
		case f.Type.Kind() == reflect.Struct && !isValue(f.Type):
			for _, below := range leaves(f.Type) {
				if name != "" { // an embedded struct without a name has its fields in its parent, as encoding/json reads it
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

// auto is the third value of a flag that is true or false otherwise: nkp decides. In a file such a field is left out.
const auto = "auto"

// textOf returns a value as a flag takes it; ok is false if it is not set: a nil pointer, an empty string or list.
func textOf(v reflect.Value) (text string, ok bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "", false
		}
		v = v.Elem()
		text, _ = textOf(v)
		return text, true
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
		var list []string
		for _, name := range slices.Sorted(maps.Keys(x)) {
			list = append(list, fmt.Sprintf("%s=%t", name, x[name]))
		}
		return strings.Join(list, ","), len(x) > 0
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), v.String() != ""
	case reflect.Float32:
		return strconv.FormatFloat(v.Float(), 'g', -1, 32), true
	}
	return fmt.Sprint(v.Interface()), true
}

// setText sets a value to the text of a flag.
func setText(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		if v.Type().Elem().Kind() == reflect.Bool && text == auto {
			v.SetZero()
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return setText(v.Elem(), text)
	}
	switch x := v.Addr().Interface().(type) {
	case *metav1.Duration:
		d, err := time.ParseDuration(text)
		x.Duration = d
		return err
	case *logsapi.TimeOrMetaDuration:
		d, err := time.ParseDuration(text)
		x.Duration.Duration, x.SerializeAsString = d, true
		return err
	case *[]string:
		*x = nil
		if text != "" {
			*x = strings.Split(text, ",")
		}
		return nil
	case *map[string]bool:
		*x = map[string]bool{}
		for part := range strings.SplitSeq(text, ",") {
			if name, value, _ := strings.Cut(part, "="); name != "" {
				on, err := strconv.ParseBool(value)
				if err != nil {
					return fmt.Errorf("%q is not NAME=true or NAME=false", part)
				}
				(*x)[name] = on
			}
		}
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return nil
	case reflect.Bool:
		on, err := strconv.ParseBool(text)
		v.SetBool(on)
		return err
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 0, v.Type().Bits())
		v.SetInt(n)
		return err
	case reflect.Uint32:
		n, err := strconv.ParseUint(text, 0, v.Type().Bits())
		v.SetUint(n)
		return err
	case reflect.Float32:
		n, err := strconv.ParseFloat(text, 32)
		v.SetFloat(n)
		return err
	}
	return fmt.Errorf("a %s cannot be set by a flag", v.Type())
}
