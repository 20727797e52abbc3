// Package helm tests the Helm chart in nkp: it makes the same objects as the kustomize overlays, and refuses values that cannot
// work. The module also pins Helm itself, for `go tool helm`.
package helm
