package ncpini

import (
	"errors"
	"fmt"
	"strings"
)

// option is an assignment of the file.
type option struct{ section, name, value string }

// maxFile bounds the file, in bytes. NSX's own, with all its comments, has about 50 kB.
const maxFile = 1 << 20

// parse reads a file in the syntax of oslo.config: [SECTION] lines, NAME = VALUE or NAME: VALUE, lines that
// begin with # or ; as comments, and indented lines that continue a value. A value may stand in quotes.
func parse(text string) ([]option, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("the file has more than %d bytes", maxFile)
	}
	text = strings.TrimPrefix(text, "\ufeff") // editors of Windows write this byte order mark
	if strings.Contains(text, "\x00") || strings.HasPrefix(text, "\xff\xfe") ||
		strings.HasPrefix(text, "\xfe\xff") {
		return nil, errors.New("it is in UTF-16, or no text: save it as UTF-8")
	}

	var all []option
	section, open := "", false // open: the last option can be continued

	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, " \t\r\n")

		switch {
		case line == "":
			open = false
		case line[0] == '#' || line[0] == ';':
		case line[0] == ' ' || line[0] == '\t':
			if !open {
				return nil, fmt.Errorf("line %d: it is indented, and continues no value: remove the spaces "+
					"before it", n)
			}
			last := &all[len(all)-1]
			last.value = strings.TrimPrefix(last.value+"\n"+strings.TrimSpace(line), "\n")
		case line[0] == '[':
			name, closed := strings.CutSuffix(line[1:], "]")
			if section = strings.TrimSpace(name); !closed || section == "" {
				return nil, fmt.Errorf("line %d: %q is not [SECTION]", n, line)
			}
			open = false
		default:
			o, err := assignment(line)
			if err == nil && section == "" {
				err = errors.New("the option is in no [SECTION]")
			}
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			o.section, open = section, true
			all = append(all, o)
		}
	}

	return all, nil
}

// assignment parses a line NAME = VALUE or NAME: VALUE. Errors leave out the value, which may be a password.
func assignment(line string) (o option, err error) {
	at := strings.IndexAny(line, "=:")
	if at < 0 {
		return o, errors.New("it is neither NAME = VALUE, [SECTION] nor a comment")
	}
	if o.name = strings.TrimSpace(line[:at]); o.name == "" {
		return o, errors.New("the option has no name")
	}

	o.value = strings.TrimSpace(line[at+1:])
	if n := len(o.value); n > 1 && o.value[0] == o.value[n-1] && strings.Contains(`"'`, o.value[:1]) {
		o.value = o.value[1 : n-1]
	}
	return o, nil
}
