package pipeline

import (
	"bufio"
	"fmt"
	"io"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// addMeters is the command that adds the meters of WriteBundle's output, FILE, to a bridge.
const addMeters = "sed -n 's/^# meter //p' FILE | xargs -n 1 ovs-ofctl -O OpenFlow15 add-meter BRIDGE"

// WriteBundle prints a state as the input of `ovs-ofctl -O OpenFlow15 bundle BRIDGE -`: groups first, then
// flows. A bundle cannot contain meters; they come first, as comments, and after them the command that adds
// them. Every line fits one OpenFlow message, because the pipeline creates no larger group.
func WriteBundle(w io.Writer, s *flow.State) error {
	out := bufio.NewWriter(w)
	for _, m := range s.SortedMeters() {
		fmt.Fprintf(out, "# meter %s\n", m)
	}
	if len(s.Meters) > 0 {
		fmt.Fprintln(out, "# first: "+addMeters)
	}
	for _, g := range s.SortedGroups() {
		fmt.Fprintf(out, "group add %s\n", g)
	}
	for _, f := range s.SortedFlows() {
		fmt.Fprintf(out, "flow add %s\n", f)
	}
	return out.Flush()
}
