package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	got := lines("\x1b[1m[1/2] web\x1b[0m\r\nplain <b>\n\n" + strings.Repeat("é", columns+5))
	want := []line{
		{{"b", "[1/2] web"}},
		{{"", "plain <b>"}},
		nil,
		{{"", strings.Repeat("é", columns)}},
	}
	if !slices.EqualFunc(got, want, slices.Equal[line]) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The picture is well-formed XML whatever was printed, and shows every line.
func TestDraw(t *testing.T) {
	var text []line
	for range 3 * rows {
		text = append(text, line{{"", "a <b> & \"c\""}})
	}
	out := string(draw("make <demo>", text))
	if n := strings.Count(out, "a &lt;b&gt; &amp; &#34;c&#34;"); n != len(text) {
		t.Errorf("%d of %d lines are in it", n, len(text))
	}
	for d := xml.NewDecoder(strings.NewReader(out)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
