package config

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NkpField is a field of NkpConfiguration.
type NkpField struct {
	Path  string // as a file writes it, for example ovs.bridge
	Flag  string // of nkp run
	index []int
}

// NkpFields lists the fields of NkpConfiguration in its order.
func NkpFields() []NkpField {
	var all []NkpField
	for _, l := range leaves(reflect.TypeFor[NkpConfiguration]()) {
		all = append(all, NkpField{Path: l.path, Flag: l.tag.Get("flag"), index: l.index})
	}
	return all
}

// Text returns the field's value as its flag takes it; ok is false if it is not set.
func (f *NkpField) Text(c *NkpConfiguration) (text string, ok bool) {
	return textOf(reflect.ValueOf(c).Elem().FieldByIndex(f.index))
}

// SetText sets the field to the text of its flag.
func (f *NkpField) SetText(c *NkpConfiguration, text string) error {
	return setText(reflect.ValueOf(c).Elem().FieldByIndex(f.index), text)
}

// NewNkpConfiguration returns one that sets nothing.
func NewNkpConfiguration() *NkpConfiguration {
	return &NkpConfiguration{TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion, Kind: Kind}}
}
