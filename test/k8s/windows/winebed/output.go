//go:build linux

package winebed

import "os"

// Output is the file that a program prints to.
type Output string

// String returns what has been printed so far.
func (o Output) String() string {
	text, _ := os.ReadFile(string(o)) // none: nothing
	return string(text)
}

// Tail returns the end of what has been printed so far, at most 4 KB.
func (o Output) Tail() string {
	text := o.String()
	return text[max(0, len(text)-4096):]
}
