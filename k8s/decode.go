package k8s

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// parsed is what came of one object of a manifest. What is wrong with it carries no Where yet: the same text
// may stand in several places.
type parsed struct {
	offset   int    // position in the piece: 1-based if the piece holds a List, else 0
	ref      Ref    // the zero Ref if it cannot be told which object this was meant to be
	object   Object // nil if there are errors
	errors   []Warning
	warnings []Warning
	syntax   bool // the error is the YAML library's and may have line numbers, counted from the start of the document
}

// failed makes a parsed of an error that hit before it was known what the object is.
func failed(text string) parsed { return parsed{errors: []Warning{{Text: brief(text)}}} }

// apiVersions are the kinds that are taken and the version that each is known in.
var apiVersions = map[Kind]string{
	KindService:       v1.SchemeGroupVersion.String(),
	KindNode:          v1.SchemeGroupVersion.String(),
	KindEndpointSlice: discoveryv1.SchemeGroupVersion.String(),
	KindServiceCIDR:   networkingv1.SchemeGroupVersion.String(),
}

func newObject(kind Kind) Object {
	switch kind {
	case KindService:
		return &v1.Service{}
	case KindEndpointSlice:
		return &discoveryv1.EndpointSlice{}
	case KindNode:
		return &v1.Node{}
	case KindServiceCIDR:
		return &networkingv1.ServiceCIDR{}
	}
	return nil
}

// parse reads a piece. torn reports that the text is no YAML at all: if the piece is an item, it may have been
// cut out wrongly.
func (p *piece) parse() (results []parsed, torn bool) {
	if results, ok := p.parseJSON(); ok {
		return p.unnested(results), false
	}
	root, err := parseYAML(p.raw)
	if err != nil {
		text := err.Error()
		if bytes.HasPrefix(bytes.TrimSpace(p.raw), []byte("{")) {
			text = strings.Replace(text, "not valid YAML", "neither valid JSON nor YAML", 1)
		}
		p := failed(text)
		p.syntax = true
		return []parsed{p}, true
	}
	if p.item > 0 {
		if root == nil || root.Kind != yaml.SequenceNode || len(root.Content) != 1 {
			return nil, true
		}
		return p.unnested(objectsOf(root.Content[0], p.list)), false
	}
	if root == nil {
		return nil, false
	}
	return objectsOf(root, ""), false
}

// unnested refuses a List that is an item of a List itself.
func (p *piece) unnested(results []parsed) []parsed {
	if p.item > 0 && slices.ContainsFunc(results, func(r parsed) bool { return r.offset > 0 }) {
		return []parsed{failed("a List inside a List is not supported")}
	}
	return results
}

// parseYAML gives the root of the tree of a document, nil if there is nothing in it.
func parseYAML(raw []byte) (root *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // the YAML library has a history of panics on malformed input
			err = fmt.Errorf("not valid YAML: %v", r)
		}
	}()
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, errors.New("not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root = doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, nil
	}
	return root, nil
}

// objectsOf gives the objects of a tree: one, those of a List, or none if its kind is not one that is taken.
// assumed is the kind to take it for if it does not say.
func objectsOf(root *yaml.Node, assumed string) []parsed {
	if root.Kind != yaml.MappingNode {
		return []parsed{failed("expected a Kubernetes object, got " + describe(root))}
	}
	apiVersion, kind, items := headOf(root)
	listed := strings.TrimSuffix(assumed, "List")
	if kind == "" && listed != "" && apiVersions[Kind(listed)] != "" {
		kind, apiVersion = listed, apiVersions[Kind(listed)]
	}
	switch {
	case kind == "":
		return []parsed{{errors: []Warning{{Field: "kind", Text: "is missing: not a Kubernetes object"}}}}
	case isList(kind, apiVersion):
		return listItems(items, kind)
	}
	want, taken := apiVersions[Kind(kind)]
	group, _, _ := strings.Cut(want, "/")
	switch {
	case !taken:
		return nil
	case apiVersion == "":
		return []parsed{{errors: []Warning{{Object: kind, Field: "apiVersion", Text: "is missing: expected " + want}}}}
	case apiVersion == want:
		return []parsed{objectOf(root, Kind(kind))}
	case group != want && strings.HasPrefix(apiVersion, group+"/"), group == want && !strings.Contains(apiVersion, "/"):
		return []parsed{{warnings: []Warning{{Object: kind, Field: "apiVersion", Text: quote(apiVersion) + " is not supported: ignored, use " + want}}}}
	}
	return nil // the same kind of another API group
}

// headOf gives what decides how an object is read.
func headOf(root *yaml.Node) (apiVersion, kind string, items *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		value := root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		switch root.Content[i].Value {
		case "apiVersion":
			apiVersion = value.Value
		case "kind":
			kind = value.Value
		case "items":
			items = value
		}
	}
	return apiVersion, kind, items
}

// isList tells v1 List and the typed lists of the kinds that are taken.
func isList(kind, apiVersion string) bool {
	if kind == "List" {
		return apiVersion == "v1" || apiVersion == ""
	}
	of, ok := strings.CutSuffix(kind, "List")
	return ok && apiVersions[Kind(of)] != "" && (apiVersion == apiVersions[Kind(of)] || apiVersion == "")
}

func listItems(items *yaml.Node, kind string) []parsed {
	if items == nil || items.Kind == yaml.ScalarNode && items.ShortTag() == "!!null" {
		return nil
	}
	if items.Kind != yaml.SequenceNode {
		return []parsed{{errors: []Warning{{Object: kind, Field: "items", Text: "expected a list, got " + describe(items)}}}}
	}
	var all []parsed
	for i, item := range items.Content {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		in := piece{item: 1}
		for _, p := range in.unnested(objectsOf(item, kind)) {
			p.offset = i + 1
			all = append(all, p)
		}
	}
	return all
}

// objectOf reads one object of a kind that is taken.
func objectOf(root *yaml.Node, kind Kind) parsed {
	o := newObject(kind)
	var a assigner
	a.assign(root, reflect.ValueOf(o).Elem())
	return finish(o, kind, a.errors, a.warnings)
}

// finish applies the defaults of the API server to an object as it was written, and validates it as that would.
func finish(o Object, kind Kind, errs, warnings []Warning) parsed {
	setDefaults(o)
	ref, _ := RefOf(o)
	if len(errs) == 0 {
		var hints []Warning
		errs, hints = validate(o)
		warnings = append(warnings, hints...)
	}
	p := parsed{ref: ref, object: o, errors: errs, warnings: warnings}
	name := cut(ref.String(), 300)
	if ref.Name == "" {
		p.ref, name = Ref{}, string(kind)
	}
	for _, list := range [][]Warning{p.errors, p.warnings} {
		for i := range list {
			list[i].Object = name
		}
	}
	if len(p.errors) > 0 {
		p.object = nil
	}
	return p
}
