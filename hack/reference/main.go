package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/command"
	"github.com/nkp-proxy/nkp/internal/config"
)

// intro is the prose at the top.
//
//go:embed intro.md
var intro string

// file is what is written, from the repository's root.
const file = "docs/configuration.md"

func main() {
	text, err := page(".")
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// page returns the file's text. root is the repository's root.
func page(root string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("<!-- Written by \"make docs\" (hack/reference) from the code: change it there. -->\n")
	b.WriteString(intro)
	if err := nkpFields(&b, filepath.Join(root, "internal/config/nkp.go")); err != nil {
		return nil, err
	}
	kubeProxyFields(&b)
	commands(&b)
	return b.Bytes(), nil
}

// nkpFields writes the fields of NkpConfiguration; source is the file with its type.
func nkpFields(w io.Writer, source string) error {
	docs, err := fieldDocs(source)
	if err != nil {
		return err
	}
	run := flagsOf("run")
	fmt.Fprintf(w, "\n## NkpConfiguration\n\n`apiVersion: %s`, `kind: %s`. A field that is left out leaves the flag's default; a field that does not exist is an error.\n\n", config.GroupVersion, config.Kind)
	fmt.Fprint(w, "| Field | Flag | Default | Meaning |\n|---|---|---|---|\n")
	for _, f := range config.NkpFields() {
		doc, ok := docs[f.Path]
		if !ok || doc == "" {
			return fmt.Errorf("%s: field %s has no doc comment", source, f.Path)
		}
		fmt.Fprintf(w, "| `%s` | `--%s` | %s | %s |\n", f.Path, f.Flag, usual(run.Lookup(f.Flag)), cell(doc))
	}
	return nil
}

// fieldDocs returns the doc comments of the fields of NkpConfiguration by path.
func fieldDocs(source string) (map[string]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	types := map[string]*ast.StructType{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				types[spec.Name.Name] = s
			}
		}
		return true
	})
	docs := map[string]string{}
	var walk func(prefix, name string)
	walk = func(prefix, name string) {
		for _, f := range types[name].Fields.List {
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
			path, _, _ := strings.Cut(tag.Get("json"), ",")
			path = prefix + path
			if t, ok := f.Type.(*ast.Ident); ok && types[t.Name] != nil {
				walk(path+".", t.Name)
				continue
			}
			docs[path] = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
	}
	walk("", config.Kind)
	return docs, nil
}

// kubeProxyFields writes what nkp does with kube-proxy's configuration.
func kubeProxyFields(w io.Writer) {
	fmt.Fprint(w, "\n## KubeProxyConfiguration\n\n`apiVersion: kubeproxy.config.k8s.io/v1alpha1`, `kind: KubeProxyConfiguration`, as of kube-proxy 1.37.\n\n")
	fmt.Fprint(w, "| Field | kube-proxy's flag | Default | What nkp does |\n|---|---|---|---|\n")
	c := config.NewKubeProxy()
	for _, f := range config.KubeProxyFields() {
		flag := ""
		if f.Flag != "" {
			flag = "`--" + f.Flag + "`"
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", f.Path, flag, code(f.Text(c)), cell(f.Note))
	}
}

// commands writes the flags of every command.
func commands(w io.Writer) {
	run := flagsOf("run")
	fmt.Fprint(w, "\n## Flags\n\nFlags may be written with underscores instead of dashes, as with kube-proxy.\n")
	all := command.Commands()
	slices.SortStableFunc(all, func(a, b *cobra.Command) int { // run first
		return cmp.Compare(strings.Index(b.Name(), "run"), strings.Index(a.Name(), "run"))
	})
	for _, cmd := range all {
		if cmd.Hidden || !cmd.Flags().HasFlags() {
			continue
		}
		fmt.Fprintf(w, "\n### nkp %s\n\n%s.\n", cmd.Use, cmd.Short)
		head := "\n| Flag | Default | Meaning |\n|---|---|---|\n" // of the flags that are not those of run
		var same, unused []string                                 // as those of run; without effect
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Deprecated != "" {
				return
			}
			if f.Hidden && cmd.Name() != "run" {
				return // run's
			}
			if f.Hidden {
				unused = append(unused, fmt.Sprintf("| `--%s` | %s |\n", f.Name, cell(f.Usage)))
				return
			}
			if o := run.Lookup(f.Name); cmd.Name() != "run" && o != nil && o.DefValue == f.DefValue && o.Usage == f.Usage {
				same = append(same, "`--"+f.Name+"`")
				return
			}
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			fmt.Fprintf(w, "%s| `%s` | %s | %s |\n", head, name, usual(f), cell(f.Usage))
			head = ""
		})
		if len(unused) > 0 {
			fmt.Fprintf(w, "\nkube-proxy flags accepted for compatibility, without effect unless the table says otherwise:\n\n| Flag | |\n|---|---|\n%s", strings.Join(unused, ""))
		}
		if len(same) > 0 {
			fmt.Fprintf(w, "\nThe same as of `nkp run`: %s.\n", strings.Join(same, ", "))
		}
	}
}

func flagsOf(name string) *pflag.FlagSet {
	for _, cmd := range command.Commands() {
		if cmd.Name() == name {
			return cmd.Flags()
		}
	}
	return (&cobra.Command{}).Flags()
}

// usual returns a flag's default.
func usual(f *pflag.Flag) string {
	if f == nil || f.DefValue == "[]" {
		return ""
	}
	return code(f.DefValue)
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell makes a text fit for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(text)
}
