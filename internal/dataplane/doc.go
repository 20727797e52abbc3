// Package dataplane holds what all data planes have in common. So far that is their sign of life: a
// [Loop] is marked by the goroutine that does a plane's work, and a [Watch] finds the loops that are stuck.
//
// It knows no plane. Start reading at [Loop].
package dataplane
