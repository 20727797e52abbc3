package hns

import "fmt"

// Version is the version of HNS (GET /globals/version).
type Version struct {
	Major, Minor int
}

// String returns major.minor.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// AtLeast reports whether v is major.minor or later.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Features are the features of an HNS that matter to a Service proxy. The names are hcsshim's.
type Features struct {
	Acl struct {
		AclAddressLists       bool
		AclNoHostRulePriority bool
		AclPortRanges         bool
		AclRuleId             bool
	}
	Api struct {
		V1 bool
		V2 bool
	}
	RemoteSubnet             bool
	HostRoute                bool
	DSR                      bool
	Slash32EndpointPrefixes  bool
	AclSupportForProtocol252 bool
	SessionAffinity          bool
	IPv6DualStack            bool
	SetPolicy                bool
	VxlanPort                bool
	ModifyLoadbalancer       bool
}

// FeaturesOf returns the features of a version. The table is hcsshim's (hcn/hcnglobals.go), but for
// ModifyLoadbalancer: HNS 15.4 accepts the call and does not apply it, so it counts from 15.5.
func FeaturesOf(v Version) Features {
	var f Features
	acl := v.AtLeast(7, 2)
	f.Acl.AclAddressLists, f.Acl.AclNoHostRulePriority, f.Acl.AclPortRanges, f.Acl.AclRuleId = acl, acl, acl, acl
	f.Api.V1 = true
	f.Api.V2 = v.AtLeast(9, 2)
	f.RemoteSubnet = v.AtLeast(9, 2)
	f.HostRoute = v.AtLeast(9, 2)
	f.DSR = v.Major == 9 && v.Minor >= 3 || v.AtLeast(10, 2)
	f.Slash32EndpointPrefixes = v.Major == 9 && v.Minor >= 3 || v.AtLeast(10, 4)
	f.AclSupportForProtocol252 = v.AtLeast(11, 0)
	f.SessionAffinity = v.AtLeast(12, 0)
	f.IPv6DualStack = v.AtLeast(11, 10)
	f.SetPolicy = v.AtLeast(13, 0)
	f.VxlanPort = v.AtLeast(10, 3)
	f.ModifyLoadbalancer = v.AtLeast(15, 5)
	return f
}

// Missing returns the error for a feature that this HNS lacks. It names the feature and the first version
// that has it.
func Missing(feature, since string, v Version) error {
	return fmt.Errorf("HNS %s has no %s (HNS %s and later have it)", v, feature, since)
}
