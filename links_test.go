package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	codeFence    = regexp.MustCompile("(?s)```.*?```")
	codeSpan     = regexp.MustCompile("`[^`\n]*`")
	docMention   = regexp.MustCompile(`docs/[a-z/-]+\.md`)
)

// TestLinks checks that every relative link of a document leads to a file of the repository, and its fragment to
// a heading there, and that every document named in a comment of Go or YAML exists.
func TestLinks(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard",
		"*.md", "*.go", "*.yaml").Output()
	must(t, err)

	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) { // deleted, not committed
			continue
		}
		must(t, err)

		if !strings.HasSuffix(file, ".md") {
			for _, name := range docMention.FindAllString(string(text), -1) {
				if _, err := os.Stat(name); err != nil {
					t.Errorf("%s names %s, which does not exist", file, name)
				}
			}
			continue
		}

		if strings.Contains(file, "hack/reference/") { // a part of docs/configuration.md
			continue
		}
		prose := codeSpan.ReplaceAllString(codeFence.ReplaceAllString(string(text), ""), "")
		for _, m := range markdownLink.FindAllStringSubmatch(prose, -1) {
			checkLink(t, file, m[1])
		}
	}
}

func checkLink(t *testing.T, file, link string) {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return
	}
	path, fragment, _ := strings.Cut(link, "#")
	target := filepath.Join(filepath.Dir(file), path)
	if path == "" {
		target = file
	}

	info, err := os.Stat(target)
	if err != nil {
		t.Errorf("%s: no file for the link %s", file, link)
		return
	}
	if fragment == "" || info.IsDir() || !strings.HasSuffix(target, ".md") {
		return
	}
	text, err := os.ReadFile(target)
	must(t, err)
	for _, line := range strings.Split(codeFence.ReplaceAllString(string(text), ""), "\n") {
		if strings.HasPrefix(line, "#") && anchor(line) == fragment {
			return
		}
	}
	t.Errorf("%s: no heading for the link %s", file, link)
}

// anchor returns the fragment that GitHub gives a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#"))) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}
