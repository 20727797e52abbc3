package configuration

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

var update = flag.Bool("update", false, "write the list of kube-proxy's flags")

// flagList is the list of kube-proxy's flags, against which internal/command tests those of nkp run.
const flagList = "../../../../internal/command/testdata/kube-proxy-flags.txt"

// The list of kube-proxy's flags is kube-proxy's.
func TestFlagList(t *testing.T) {
	cmd := app.NewProxyCommand()
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(nil); err != nil { // merges those of other packages
		t.Fatal(err)
	}
	var b strings.Builder
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "test.") || f.Name == "update" || f.Name == "help" { // of this test, and of every command
			return
		}
		fmt.Fprintf(&b, "%s\t%s\t%s\t%q\n", f.Name, f.Shorthand, f.Value.Type(), f.DefValue)
	})
	if *update {
		if err := os.WriteFile(flagList, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(flagList)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("%s is not what kube-proxy has now (go test -update writes it):\n%s", flagList, got)
	}
}
