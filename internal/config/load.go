package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"k8s.io/kube-proxy/config/v1alpha1"
)

const kubeProxyKind = "KubeProxyConfiguration"

// maxSize bounds a configuration file, in bytes: a ConfigMap holds no more.
const maxSize = 1 << 20

// File is a parsed configuration file.
type File struct {
	Path string
	// KubeProxy is completed with kube-proxy's defaults and validated; nil: the file holds none.
	KubeProxy *KubeProxy
	// Nkp is nil if the file holds none.
	Nkp *NkpConfiguration
	// Warnings are about settings that have no effect.
	Warnings []string

	raw []byte // its content
}

// Load reads a configuration file. Its errors name the file, and the document and the field where there is
// one.
func Load(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("%s: is no configuration: it has more than %d bytes", path, maxSize)
	}
	return data, err
}

// Parse is Load for data that was read from path.
func Parse(path string, data []byte) (*File, error) {
	f := &File{Path: path, raw: data}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = f.document(doc)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %s", path, n, strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	if f.KubeProxy == nil && f.Nkp == nil {
		return nil, fmt.Errorf("%s: holds neither a %s of %s nor a %s of %s",
			path, kubeProxyKind, v1alpha1.SchemeGroupVersion, Kind, GroupVersion)
	}
	return f, nil
}

// document parses one document of the file.
func (f *File) document(doc []byte) error {
	var head *metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		if _, syntax := yaml.YAMLToJSON(doc); syntax != nil {
			return err
		}
		return fmt.Errorf("it is not a mapping with the texts apiVersion and kind of a %s or a %s",
			kubeProxyKind, Kind)
	}
	if head == nil {
		return nil // only comments
	}

	duplicateKind := fmt.Errorf("there is a second %s", head.Kind)
	switch {
	case head.APIVersion == v1alpha1.SchemeGroupVersion.String() && head.Kind == kubeProxyKind:
		if f.KubeProxy != nil {
			return duplicateKind
		}
		return f.kubeProxy(doc)
	case head.APIVersion == GroupVersion && head.Kind == Kind:
		if f.Nkp != nil {
			return duplicateKind
		}
		return f.nkp(doc)
	}
	return fmt.Errorf("apiVersion %q, kind %q is neither a %s of %s nor a %s of %s",
		head.APIVersion, head.Kind, kubeProxyKind, v1alpha1.SchemeGroupVersion, Kind, GroupVersion)
}

// kubeProxy parses a KubeProxyConfiguration. Like kube-proxy, it accepts unknown and duplicate fields with a
// warning.
func (f *File) kubeProxy(doc []byte) error {
	c := &KubeProxy{}
	strict, err := decode(doc, c)
	if err != nil {
		return fmt.Errorf("%s: %w", kubeProxyKind, err)
	}
	for _, e := range strict {
		f.Warnings = append(f.Warnings, fmt.Sprintf("%s: %s: %v", f.Path, kubeProxyKind, e))
	}

	given := c.DeepCopy()
	Default(c)
	defaultForNode(c)
	if errs := Validate(c); len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = kubeProxyKind + "." + e.Error()
		}
		return errors.New(strings.Join(texts, "; "))
	}
	ownDefaults(c, given)

	if names := WithoutEffect(c); len(names) > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("%s: fields of %s that have no effect here: %s",
			f.Path, kubeProxyKind, strings.Join(names, ", ")))
	}
	if c.Mode != "" {
		f.Warnings = append(f.Warnings, fmt.Sprintf(
			"%s: mode %s of %s does not choose the data plane of nkp; --mode does",
			f.Path, c.Mode, kubeProxyKind))
	}
	normalizeAddresses(c)
	f.KubeProxy = c
	return nil
}

// nkp parses an NkpConfiguration. Unknown fields are errors, because the format is nkp's own.
func (f *File) nkp(doc []byte) error {
	c := &NkpConfiguration{}
	strict, err := decode(doc, c)
	if err = errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("%s: %w", Kind, err)
	}
	f.Nkp = c
	return nil
}

// decode reads a document into a configuration. strict lists unknown and duplicate fields, with which it can
// be used.
func decode(doc []byte, into any) (strict []error, err error) {
	if _, err := yaml.YAMLToJSONStrict(doc); err != nil {
		strict = append(strict, err)
	}
	text, err := yaml.YAMLToJSON(doc)
	if err != nil {
		return strict, err
	}
	more, err := kjson.UnmarshalStrict(text, into)
	return append(strict, more...), err
}
