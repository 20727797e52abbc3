// Package helm tests the Helm chart in deploy/helm/nkp: the chart must render the same objects as the
// kustomize overlays, and must reject values that cannot work. The module also pins Helm itself, for `go tool helm`.
package helm
