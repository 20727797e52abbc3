package pipeline

import (
	"bufio"
	"fmt"
	"io"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// WriteBundle prints a state as the input of `ovs-ofctl -O OpenFlow15 bundle BRIDGE -`: groups first, then
// flows. A bundle cannot contain meters; they come first, as comments for `ovs-ofctl add-meter`. Every line
// fits one OpenFlow message, because the pipeline creates no larger group.
func WriteBundle(w io.Writer, s *flow.State) error {
	out := bufio.NewWriter(w)
	for _, m := range s.SortedMeters() {
		fmt.Fprintf(out, "# meter %s\n", m)
	}
	for _, g := range s.SortedGroups() {
		fmt.Fprintf(out, "group add %s\n", g)
	}
	for _, f := range s.SortedFlows() {
		fmt.Fprintf(out, "flow add %s\n", f)
	}
	return out.Flush()
}
