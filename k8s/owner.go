package k8s

// ServiceOf reports which Service an object is, or belongs to; ok is false if it is neither Service nor EndpointSlice, or a
// slice of no Service.
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
