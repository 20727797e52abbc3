package ovsdb

// SetMaxTaken changes maxTaken until the function that it gives is called.
func SetMaxTaken(n int) (restore func()) {
	was := maxTaken
	maxTaken = n
	return func() { maxTaken = was }
}
