package mode

import (
	"fmt"
	"runtime"

	"github.com/nkp-proxy/nkp/internal/bridge"
)

// Mode names a data plane.
type Mode string

// The data planes, as --mode says them. Auto leaves the choice to nkp.
const (
	Auto     Mode = "auto"
	OVS      Mode = "ovs"
	IPTables Mode = "iptables"
	NFTables Mode = "nftables"
	Windows  Mode = "windows"
)

// OnLinux returns the data planes of Linux.
func OnLinux() []Mode { return []Mode{OVS, NFTables, IPTables} }

// Possible returns the data planes of which Auto stands for one on this operating system.
func Possible() []Mode {
	if runtime.GOOS == "windows" {
		return []Mode{Windows}
	}
	return OnLinux()
}

// Choice is a data plane and why it was chosen.
type Choice struct {
	Mode   Mode
	Reason string
}

// Given returns the data plane if it is known without examining the node: the one asked for, or the system's
// only one. ok is false if there is a choice. The error says that the one asked for does not work on this
// operating system.
func Given(asked Mode) (c Choice, ok bool, err error) {
	onWindows := runtime.GOOS == "windows"
	switch {
	case asked == Auto && !onWindows:
		return c, false, nil
	case asked == Auto:
		return Choice{Windows, "this is Windows"}, true, nil
	case (asked == Windows) != onWindows:
		err = fmt.Errorf("--mode %s does not work on %s", asked, runtime.GOOS)
	}
	return Choice{asked, "--mode " + string(asked)}, true, err
}

// Facts are what a choice depends on. A choice calls each function once at most.
type Facts struct {
	Asked Mode // --mode

	OVSDB, Bridge string // the names of the database and the bridge, for the reason
	// OVS returns the directory of the database's socket, and whether Open vSwitch is installed.
	OVS func() (dir string, installed bool)
	// Connect connects to the bridge. absent reports whether its error is a reason to do without the bridge.
	Connect func() (absent bool, err error)
	// NotNFTables returns why nftables must not take the place of iptables; "": it may.
	NotNFTables func() string

	// For what serves beside a bridge.
	HostTraffic bridge.HostTraffic // --host-traffic
	SharesNode  bool               // --service-proxy-name: another Service proxy is expected
	NotIPTables func() error       // why iptables cannot be used
	// what another Service proxy has installed, which nkp may only take over if told to; "": nothing
	AnotherProxy func() string
}

// Choose returns the data plane that serves the node's Services. A bridge that exists but cannot be used is
// an error, never a reason for iptables.
func (f *Facts) Choose() (Choice, error) {
	c, given, err := Given(f.Asked)
	if err != nil || given && c.Mode != OVS {
		return c, err
	}
	if !given {
		if dir, installed := f.OVS(); !installed {
			return f.withoutBridge("there is no Open vSwitch here: nothing in " + dir), nil
		}
	}

	switch absent, err := f.Connect(); {
	case err == nil:
		return Choice{OVS, fmt.Sprintf("%s answers and has bridge %s", f.OVSDB, f.Bridge)}, nil
	case absent && !given:
		return f.withoutBridge(fmt.Sprintf("Open vSwitch is installed, but: %v", err)), nil
	default:
		return Choice{}, err
	}
}

// withoutBridge decides between nftables and iptables, for the reason that there is no bridge.
func (f *Facts) withoutBridge(reason string) Choice {
	if why := f.NotNFTables(); why != "" {
		return Choice{IPTables, reason + "; not nftables: " + why}
	}
	return Choice{NFTables, reason}
}

// Beside returns the data plane that serves the node's own traffic beside a bridge: the one that
// --host-traffic names, else nftables, or iptables, and why says what speaks against nftables. If it is "",
// none serves, for the reason in why.
func (f *Facts) Beside() (m Mode, why string) {
	lacking := f.NotIPTables()
	switch {
	case f.HostTraffic == bridge.HostNFTables:
		return NFTables, ""
	case f.HostTraffic == bridge.HostIPTables && lacking != nil:
		return "", lacking.Error()
	case f.HostTraffic == bridge.HostIPTables:
		return IPTables, ""
	}

	if !f.SharesNode {
		if why = f.AnotherProxy(); why != "" {
			return "", why
		}
	}
	switch why = f.NotNFTables(); {
	case why == "":
		return NFTables, ""
	case f.SharesNode:
		return "", "with --service-proxy-name another Service proxy is expected on this node, and iptables " +
			"mode uses the same chain names " +
			"(--host-traffic iptables makes nkp take them over); not nftables: " + why
	case lacking != nil:
		return "", lacking.Error() + "; not nftables: " + why
	}
	return IPTables, why
}
