package selftest

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Format is the version of the report's JSON form.
const Format = 1

// Report is the outcome of a self-test.
type Report struct {
	Format      int         `json:"format"`
	NKP         string      `json:"nkp"`     // version of nkp
	Windows     string      `json:"windows"` // version of Windows
	HNS         hns.Version `json:"hns"`
	NetworkType string      `json:"networkType"`
	Began       time.Time   `json:"began"`
	Objects     []Object    `json:"objects"`
	// Notes are other findings, such as leftovers of an earlier run that were removed; Left what could not be
	// deleted.
	Notes []string `json:"notes"`
	Left  []string `json:"left"`
}

// Object is one object that HNS was asked to create or modify.
type Object struct {
	Kind  hns.Kind `json:"kind"`
	Shape string   `json:"shape"` // which of nkp's objects it is, in words
	// Asked is the request, Stored HNS's answer; none if HNS refused it.
	Asked  json.RawMessage `json:"asked"`
	Stored json.RawMessage `json:"stored,omitempty"`
	// Differences are the fields that Asked has and Stored has not, or has with another value. Added are
	// those that only Stored has.
	Differences []Difference `json:"differences"`
	Added       []string     `json:"added"`
	// Altered reports whether one of the differences matters to nkp: it then accepts the object as HNS has
	// it.
	Altered bool    `json:"altered"`
	State   int     `json:"state,omitempty"` // of a load balancer; 2: programmed, 0: not reported
	Error   string  `json:"error,omitempty"`
	TookMS  float64 `json:"tookMilliseconds"` // of the request, with reading the answer
}

// Difference is a field that HNS stores differently than requested. The values are JSON; Stored "": it is
// missing.
type Difference struct {
	Field  string `json:"field"`
	Asked  string `json:"asked"`
	Stored string `json:"stored"`
}

// Passed reports whether HNS accepted every object and nothing is left.
func (r *Report) Passed() bool {
	for i := range r.Objects {
		if r.Objects[i].Error != "" {
			return false
		}
	}
	return len(r.Left) == 0
}

// Text writes the report for people.
func (r *Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "nkp\t%s on Windows %s, HNS %s, a network of type %s\n",
		r.NKP, r.Windows, r.HNS, r.NetworkType)

	refused, altered := 0, 0
	for i := range r.Objects {
		o := &r.Objects[i]
		result := "as requested"
		switch {
		case o.Error != "":
			result = "REFUSED: " + strings.ReplaceAll(o.Error, "\n", "; ")
			refused++
		case o.Altered:
			result = "stored differently: " + o.differences()
			altered++
		case len(o.Differences) > 0:
			result = "as requested, but for " + o.differences()
		}
		if o.State != 0 && o.State != hns.StateHealthy {
			result += fmt.Sprintf("; State %d, not %d", o.State, hns.StateHealthy)
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f ms\t%s\n", o.Kind, o.Shape, o.TookMS, result)
	}

	for _, n := range r.Notes {
		fmt.Fprintf(w, "note\t%s\n", n)
	}
	for _, l := range r.Left {
		fmt.Fprintf(w, "LEFT\t%s\n", l)
	}

	fmt.Fprintf(w, "result\t%d objects: %d refused, %d stored differently (nkp uses these as HNS has them), "+
		"%d could not be deleted\n",
		len(r.Objects), refused, altered, len(r.Left))
	if refused+altered+len(r.Left) > 0 {
		fmt.Fprintln(w, "next\tattach the output of \"nkp hns-selftest -o json\" to an issue: it becomes a test")
	}
	return w.Flush()
}

func (o *Object) differences() string {
	var list []string
	for _, d := range o.Differences {
		stored := d.Stored
		if stored == "" {
			stored = "missing"
		}
		list = append(list, fmt.Sprintf("%s %s, not %s", d.Field, stored, d.Asked))
	}
	return strings.Join(list, ", ")
}
