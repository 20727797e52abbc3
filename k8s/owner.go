package k8s

// ServiceOf returns the Service that an object is or belongs to; ok is false for other kinds and for an
// EndpointSlice of no Service.
func (t *Tracker) ServiceOf(ref Ref) (name ServiceName, ok bool) {
	switch ref.Kind {
	case KindService:
		return ServiceName{ref.Namespace, ref.Name}, true
	case KindEndpointSlice:
		name, ok = t.sliceOf[ServiceName{ref.Namespace, ref.Name}]
		return name, ok
	}
	return name, false
}
