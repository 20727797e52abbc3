package serving

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// PortHash returns the 16 characters that names of a Service port's chains end in, as kube-proxy's do:
// SHA-256 of namespace/name:port, the protocol and what more the name stands for, in base32, truncated.
func PortHash(n k8s.PortName, more ...string) string {
	sum := sha256.Sum256([]byte(n.String() + Protocol(n) + strings.Join(more, "")))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// Protocol returns a Service port's protocol in lower case, as rules spell it.
func Protocol(n k8s.PortName) string { return strings.ToLower(string(n.Protocol)) }
