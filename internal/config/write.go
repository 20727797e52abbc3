package config

import (
	"bytes"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Write writes configurations to a file as Load reads them.
func Write(path string, kubeProxy *KubeProxy, nkp *NkpConfiguration) error {
	var out bytes.Buffer
	for i, c := range []any{kubeProxy, nkp} {
		text, err := yaml.Marshal(c)
		if err != nil {
			return err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	return nil
}
