package dataplane

import (
	"fmt"
	"strings"
	"time"
)

// Repair describes a repair: a data plane found that another program had changed what nkp installed.
type Repair struct {
	At   time.Time `json:"time"`
	What string    `json:"what"`
}

// CountPorts returns "1 Service port" or "N Service ports".
func CountPorts(n int) string {
	if n == 1 {
		return "1 Service port"
	}
	return fmt.Sprintf("%d Service ports", n)
}

// maxNamed bounds the names in a message.
const maxNamed = 5

// Some returns the first maxNamed names, joined by commas, and the number of the others.
func Some(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}
