package dpctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Megaflows is how full a datapath's cache of flows is. ovs-vswitchd moves the limit by itself: it starts at
// 10,000, grows up to other_config:flow-limit as more flows are cached, and falls while a scan of the cache
// takes longer than 2 s (ofproto/ofproto-dpif-upcall.c, udpif_revalidator).
type Megaflows struct {
	Entries int `json:"entries"`
	Limit   int `json:"limit"`
	// Refused counts the flows that the limit kept out since ovs-vswitchd started; nil: this release does not
	// count them.
	Refused *uint64 `json:"refused,omitempty"`
	// NotKnown is why the numbers could not be read; "": they were.
	NotKnown string `json:"notKnown,omitempty"`
}

// String returns the numbers in one line.
func (m *Megaflows) String() string {
	if m.NotKnown != "" {
		return "not known: " + m.NotKnown
	}
	s := fmt.Sprintf("%d of %d cached flows", m.Entries, m.Limit)
	if m.Refused != nil && *m.Refused > 0 {
		s += fmt.Sprintf("; the limit kept out %d since ovs-vswitchd started", *m.Refused)
	}
	return s
}

// Warnings returns a line if the limit is reached or near.
func (m *Megaflows) Warnings() []string {
	if m.NotKnown != "" || !(&Fill{Entries: m.Entries, Limit: m.Limit}).Nearly() {
		return nil
	}
	return []string{fmt.Sprintf("the datapath caches %d flows of at most %d at present: "+
		"each packet beyond goes through ovs-vswitchd, which is slow and may lose it; "+
		"find out who opens so many connections (ovs-appctl upcall/show), or raise the limit (ovs-vsctl "+
		"set Open_vSwitch . other_config:flow-limit=N)", m.Entries, m.Limit)}
}

// Megaflows returns how full the datapath's cache of flows is. It costs ovs-vswitchd less than a millisecond.
func (t Daemon) Megaflows(ctx context.Context) (m Megaflows, err error) {
	inDatapath, found := t.Datapath == "", false

	err = t.lines(ctx, "upcall/show", nil, func(line []byte) error {
		text := string(line)
		if name, heading := strings.CutSuffix(text, ":"); heading && !strings.HasPrefix(text, " ") {
			inDatapath = t.Datapath == "" || name == t.Datapath
			return nil
		}

		var avg, most int
		if _, rest, ok := strings.Cut(text, "flows         : "); inDatapath && !found && ok {
			_, err := fmt.Sscanf(rest, "(current %d) (avg %d) (max %d) (limit %d)",
				&m.Entries, &avg, &most, &m.Limit)
			found = err == nil
		}
		return nil
	})

	if err == nil && !found {
		err = errors.New("ovs-vswitchd does not say how many flows it caches")
	}
	if err != nil {
		return m, err
	}

	counts, err := t.Counters(ctx, "upcall_flow_limit_hit")
	if n, ok := counts["upcall_flow_limit_hit"]; ok {
		m.Refused = &n
	}
	return m, err
}

// Counters returns the event counters of ovs-vswitchd with these names, of all its datapaths since it
// started. Those that its release does not have are left out.
func (t Daemon) Counters(ctx context.Context, names ...string) (map[string]uint64, error) {
	params := make([][]string, len(names))
	for i, name := range names {
		params[i] = []string{name}
	}
	out := map[string]uint64{}
	err := t.each(ctx, "coverage/read-counter", params, func(i int, text string, refused *CommandError) {
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); err == nil && refused == nil {
			out[names[i]] = n
		}
	})
	return out, err
}
