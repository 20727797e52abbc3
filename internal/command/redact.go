package command

import (
	"regexp"
	"slices"
	"strings"
)

// secrets match what redact replaces: all but the first group. A value after a telling name ends with its line, because it may have
// any form.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?s)()-----BEGIN .*?(?:-----END [^-]*-----|\z)`),
	regexp.MustCompile(`(?i)((?:token|passw|pwd|passphrase|secret|credential|api[-_]?key|private[-_]?key|authorization|(?:key|certificate|authority)-data)` +
		`[\w.-]*(?:\\*["']*\s*[:=]|\s)\s*)[^\n]+`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[^\n]+`),
	regexp.MustCompile(`()\beyJ[\w-]+\.[\w-]+\.?[\w-]*`), // a JSON Web Token (RFC 7519)
	regexp.MustCompile(`(://)[^/\s"']+@`),                // userinfo of a URL (RFC 3986, 3.2.1)
	regexp.MustCompile(`()[A-Za-z0-9+/]{64,}={0,2}`),     // base64 of a key or certificate
}

// harmless are values that are no secrets, whatever their name.
var harmless = []string{"", "true", "false", "null", "{", "["}

// redact returns a text without what looks like a credential. What nkp writes holds none: this is for what others have put into the
// objects, the database and the errors that nkp quotes.
func redact(text string) string {
	for _, s := range secrets {
		text = s.ReplaceAllStringFunc(text, func(match string) string {
			kept := s.FindStringSubmatch(match)[1]
			if slices.Contains(harmless, strings.Trim(match[len(kept):], `", `)) {
				return match
			}
			return kept + "[redacted]"
		})
	}
	return text
}
