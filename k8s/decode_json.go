package k8s

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// jsonHead is what decides how a JSON document is read.
type jsonHead struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
}

// parseJSONHead reads a document that is a List in JSON; ok is false if it is not.
func parseJSONHead(raw []byte) (head jsonHead, ok bool) {
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &head)
	return head, err == nil && isList(head.Kind, head.APIVersion)
}

// parseJSON reads a JSON document other than a List (those are cut into items before), or such an item. ok is
// false if the text is not JSON.
func (p *piece) parseJSON() (results []parsed, ok bool) {
	if !looksJSON(p.raw) || !json.Valid(p.raw) {
		return nil, false
	}
	return parseJSONObject(p.raw, p.list), true
}

// parseJSONObject reads one object, much faster than it could be read as YAML. Whatever is wrong with it is found out
// again from its tree, which knows the paths. assumed is the kind of the List that holds it.
func parseJSONObject(raw []byte, assumed string) []parsed {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       Kind   `json:"kind"`
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &head) == nil && head.Kind != "" {
		want, taken := apiVersions[head.Kind]
		if taken && head.APIVersion == want {
			o := newObject(head.Kind)
			strict, err := kjson.UnmarshalStrict(raw, o)
			if err == nil && len(strict) == 0 {
				return []parsed{finish(o, head.Kind, nil, nil)}
			}
		}
	}
	root, err := treeOfJSON(raw)
	if err != nil {
		return []parsed{failed("not valid JSON: " + err.Error())}
	}
	return objectsOf(root, assumed)
}

// treeOfJSON gives a JSON value as the tree that YAML would have made of it.
func treeOfJSON(raw []byte) (*yaml.Node, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return jsonNode(d, 0)
}

func jsonNode(d *json.Decoder, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string, style yaml.Style) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, Style: style}, nil
	}
	switch t := token.(type) {
	case nil:
		return scalar("!!null", "null", 0)
	case bool:
		return scalar("!!bool", fmt.Sprint(t), 0)
	case json.Number:
		tag := "!!int"
		if bytes.ContainsAny([]byte(t), ".eE") {
			tag = "!!float"
		}
		return scalar(tag, t.String(), 0)
	case string:
		return scalar("!!str", t, yaml.DoubleQuotedStyle)
	}
	node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	if token == json.Delim('{') {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for d.More() { // object keys come as tokens of their own
		child, err := jsonNode(d, depth+1)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	_, err = d.Token()
	return node, err
}
