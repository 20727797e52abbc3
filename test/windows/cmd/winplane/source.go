package main

import (
	"context"
	"log/slog"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows"
)

// sink hands what a source reports to the plane. A source calls it from one goroutine.
type sink struct {
	tracker *k8s.Tracker
	plane   *windows.Plane
	synced  bool
}

func (s *sink) Apply(changes []k8s.Change) {
	s.tracker.Apply(changes)
	if s.synced {
		s.flush()
	}
}

func (s *sink) Synced() {
	s.synced = true
	s.flush()
}

func (s *sink) Problems(p k8s.Problems) {
	for _, w := range append(p.Errors, p.Warnings...) {
		slog.Warn("manifests", "problem", w.String())
	}
}

func (s *sink) flush() {
	model, changes := s.tracker.Flush()
	s.plane.Update(model, changes)
}

// follow gives the plane what the manifests say, and every change of them, until the context ends.
func follow(ctx context.Context, path, node string, plane *windows.Plane) error {
	return k8s.NewManifestSource(path).Run(ctx, &sink{tracker: k8s.NewTracker(k8s.Options{NodeName: node}), plane: plane})
}

// load gives the plane what the manifests say now.
func load(path, node string, plane *windows.Plane) error {
	m := k8s.LoadManifests(path)
	if err := m.Err(); err != nil {
		return err
	}
	s := &sink{tracker: k8s.NewTracker(k8s.Options{NodeName: node}), plane: plane}
	s.Apply(m.Objects)
	s.Synced()
	return nil
}
