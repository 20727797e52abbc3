package command

import (
	"regexp"
	"slices"
	"strings"
)

// secrets match what redact replaces in a line: all but the first group. A value after a telling name ends
// with its line, because it may have any form. A line without one of the hints, in lower case, does not
// match.
var secrets = []struct {
	hints []string
	*regexp.Regexp
}{
	{telling,
		regexp.MustCompile(`(?i)((?:` + strings.Join(telling, "|") + `)[\w.-]*(?:\\*["'\])}]*\s*[:=]|\s)\s*).+`)},
	{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+).+`)},
	{[]string{"eyj"}, regexp.MustCompile(`()\beyJ[\w-]+\.[\w-]+\.?[\w-]*`)}, // a JSON Web Token (RFC 7519)
	// userinfo of a URL (RFC 3986, 3.2.1)
	{[]string{"://"}, regexp.MustCompile(`(://)[^/\s"']+@`)},
}

// telling are the names of credentials, of kubeconfigs and others.
var telling = []string{
	"token", "passw", "pwd", "passphrase", "secret", "credential", "api-key", "api_key", "apikey",
	"private-key", "private_key", "privatekey", "authorization", "key-data",
	"certificate-data", "authority-data",
}

var (
	pem = regexp.MustCompile(`(?s)-----BEGIN .*?(?:-----END [^-]*-----|\z)`)
	// A base64 text of base64Line characters or more is a key or a certificate.
	base64Text = regexp.MustCompile(`[A-Za-z0-9+/]{64,}={0,2}`)
)

const (
	base64Line = 64
	redacted   = "[redacted]"
)

// harmless are values that are no secrets, whatever their name.
var harmless = []string{"", "true", "false", "null", "{", "["}

// redact returns a text without what looks like a credential. What nkp writes holds none: this is for what
// others have put into the objects, the database and the errors that nkp quotes.
func redact(text string) string {
	var out strings.Builder
	for line := range strings.Lines(pem.ReplaceAllString(text, redacted)) {
		lower := strings.ToLower(line)
		for _, s := range secrets {
			hinted := func(hint string) bool { return strings.Contains(lower, hint) }
			if !slices.ContainsFunc(s.hints, hinted) {
				continue
			}
			line = s.ReplaceAllStringFunc(line, func(match string) string {
				kept := s.FindStringSubmatch(match)[1]
				if slices.Contains(harmless, strings.Trim(match[len(kept):], `", `)) {
					return match
				}
				return kept + redacted
			})
		}

		other := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '/' || r > '9') && r != '+'
		}
		for word := range strings.FieldsFuncSeq(line, other) {
			// a checksum is no secret
			if len(word) >= base64Line && strings.Trim(word, "0123456789abcdef") != "" {
				line = base64Text.ReplaceAllString(line, redacted)
				break
			}
		}

		out.WriteString(line)
	}
	return out.String()
}
