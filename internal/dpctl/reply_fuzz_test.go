package dpctl

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// FuzzReply is a daemon that answers anything to a command. call must end with an answer or one clear error.
func FuzzReply(f *testing.F) {
	for _, s := range []string{
		`{"id":0,"result":"text","error":null}`, `{"id":0,"result":null,"error":"no such\nbridge"}`, `{"id":0}`, `{"result":7}`, `{"error":{}}`,
		`{"result":"a"}{"result":"b"}`, `[]`, `null `, `"x"`, `{"id":0,"res`, ``, "\x00", `{"result":"\ud800"}`, `{"RESULT":"x"}`,
	} {
		f.Add([]byte(s))
	}
	var answer []byte // written before call, read while it runs
	path := daemon(f, func(conn net.Conn, _ request) { conn.Write(answer) })
	f.Fuzz(func(t *testing.T, b []byte) {
		answer = b
		text, err := (Daemon{Control: path}).call(t.Context(), "list")
		var refused *CommandError
		switch {
		case err == nil:
			if len(text) > 3*len(answer) { // a bad byte becomes U+FFFD, of three
				t.Errorf("%d bytes of an answer of %d", len(text), len(answer))
			}
		case text != "":
			t.Errorf("both %q and %v", text, err)
		case errors.As(err, &refused):
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is no line", err)
			}
		case len(err.Error()) > 500:
			t.Errorf("an error of %d bytes: %.300q", len(err.Error()), err)
		}
	})
}
