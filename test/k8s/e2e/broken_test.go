package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
)

// Of the broken situations (test/packets, TestBrokenSituations) the one that takes an API server: it is away, and all
// commands say so, since when, and that they answer from what it said last. What it said last is served.
func TestBrokenAPIServerAway(t *testing.T) {
	c, client, web, _ := newStory(t)
	trace := []string{"trace", "--from", client.IP4.String(), "--to", web4}
	for _, q := range [][]string{{"status"}, {"services", "default/web"}, trace} {
		out, _ := c.nkp(append(q, "--socket", c.socket())...)
		must(t, hasNot(out, "not answer"))
	}
	c.server.Kill()
	const since = `since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\d+s`
	url := regexp.QuoteMeta(serverURL)
	for _, q := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, `source +` + url + `: does NOT answer ` + since + ` ago\); the last state stays in force\n`},
		{[]string{"services", "default/web"}, `(?s)default/web:http/TCP +IPv4 +40\.0\.0\.10:80.*NOTE: ` + url + ` has not answered ` + since + `\): this is from what it said last\n`},
		{trace, `(?s) 1\. ` + url + ` has not answered ` + since + `\): this is from what it said last\n.*verdict: deliver\n`},
	} {
		want := regexp.MustCompile(q.want)
		c.eventually(fmt.Sprintf("%s says that the API server is away", q.args[0]), func() error {
			if out, _ := c.nkp(append(q.args, "--socket", c.socket())...); !want.MatchString(out) {
				return fmt.Errorf("%q is not in\n%s", q.want, out)
			}
			return nil
		})
	}
	must(t, c.answers(client.Host, web4, web...))
	c.startServer()
	c.eventually("nobody says so any more", func() error {
		var errs []error
		for _, q := range [][]string{{"status"}, {"services", "default/web"}, trace} {
			out, _ := c.nkp(append(q, "--socket", c.socket())...)
			errs = append(errs, hasNot(out, "not answer", "NOT answer"))
		}
		return errors.Join(errs...)
	})
}
