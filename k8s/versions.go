package k8s

// Versions are the resourceVersions of a Service and its EndpointSlices as they were received; "" for objects
// of manifests that have none.
type Versions struct {
	Service        string            `json:"service"`        // "": there is no such Service, only slices
	EndpointSlices map[string]string `json:"endpointSlices"` // by name; not nil
}

// VersionsOf returns the Versions of a Service; ok is false if there is neither the Service nor a slice of
// it.
func (t *Tracker) VersionsOf(name ServiceName) (v Versions, ok bool) {
	v.EndpointSlices = map[string]string{}
	s := t.services[name]
	if s == nil {
		return v, false
	}
	if s.def != nil {
		v.Service = s.def.version
	}
	for _, sl := range s.slices {
		v.EndpointSlices[sl.name] = sl.version
	}
	return v, s.def != nil || len(s.slices) > 0
}

// Unserved returns why this node serves nothing of a Service; "": it serves what it has of it. The reason is
// final if nothing but another version of the Service or its EndpointSlices, or a restart, can change it.
func (t *Tracker) Unserved(name ServiceName) (why string, final bool) {
	s := t.services[name]
	switch {
	case s == nil || s.def == nil:
		return "", false
	case s.def.skipped:
		return whySkipped, true
	}
	return s.refused, s.tooLarge != ""
}
