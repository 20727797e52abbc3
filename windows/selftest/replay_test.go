package selftest

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

var update = flag.Bool("update", false, "write the report of the fake")

// recording is a report of the fake with an HNS that alters much of what it stores. It stands where those of real hosts go.
const recording = "../testdata/echoes/fake-altered.json"

// An HNS that replays a report stores what the HNS of the report did.
func TestReplay(t *testing.T) {
	s := hnsfake.New(newest)
	s.SetEcho(func(kind string, o hnsfake.Object) {
		o["ID"] = strings.ToUpper(o["ID"].(string))
		if len(o) == 1 {
			return
		}
		o["Health"] = map[string]any{"Extra": map[string]any{}}
		flags, _ := o["Flags"].(float64)
		switch kind {
		case "LoadBalancer":
			o["Flags"] = flags + 64
			delete(o, "SourceVIP")
			for i, id := range o["HostComputeEndpoints"].([]any) {
				o["HostComputeEndpoints"].([]any)[i] = strings.ToUpper(id.(string))
			}
		case "Endpoint":
			o["MacAddress"] = strings.ToUpper(strings.ReplaceAll(o["MacAddress"].(string), "-", ":"))
			o["IpConfigurations"].([]any)[0].(map[string]any)["PrefixLength"] = 24
			if flags == 1 {
				o["Flags"] = 9
				policies, _ := o["Policies"].([]any)
				o["Policies"] = append(policies, map[string]any{"Type": "L4Proxy", "Settings": map[string]any{"Port": 1}})
			}
		}
	})
	first, err := Run(t.Context(), s.Raw(), options(hns.NetworkOverlay))
	must(t, err)
	text, err := json.MarshalIndent(first, "", " ")
	must(t, err)
	if *update {
		must(t, os.WriteFile(recording, append(text, '\n'), 0o644))
	}
	echo, err := hnsfake.Replay(text)
	must(t, err)
	s = hnsfake.New(newest)
	s.SetEcho(echo)
	second, err := Run(t.Context(), s.Raw(), options(hns.NetworkOverlay))
	must(t, err)
	if len(first.Objects) != len(second.Objects) || len(first.Objects) < 15 {
		t.Fatalf("%d objects, then %d", len(first.Objects), len(second.Objects))
	}
	altered := 0
	for i := range first.Objects {
		a, b := first.Objects[i], second.Objects[i]
		if string(a.Stored) != string(b.Stored) {
			t.Errorf("%s %s:\nstored %s\n  then %s", a.Kind, a.Shape, a.Stored, b.Stored)
		}
		if a.Altered {
			altered++
		}
	}
	if altered < 10 {
		t.Errorf("%d objects are altered", altered)
	}
}

// A report of another form is an error, not an HNS without alterations.
func TestReplayOfNothing(t *testing.T) {
	for _, text := range []string{"", "{}", `{"format":2,"objects":[{}]}`, `{"format":1}`} {
		if _, err := hnsfake.Replay([]byte(text)); err == nil {
			t.Errorf("%q is taken for a report", text)
		}
	}
}
