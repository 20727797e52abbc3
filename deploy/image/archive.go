package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A file is a regular file, or a symbolic link if link is set.
type file struct {
	data []byte
	mode fs.FileMode
	link string
}

// files are a layer: files by their path without a leading slash. The directories follow from the paths.
type files map[string]file

// tar returns the layer's tar, owned by root, with each directory before what is in it.
func (f files) tar(at time.Time) ([]byte, error) {
	entries := maps.Clone(f)
	for name := range f {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			entries[dir] = file{mode: fs.ModeDir | 0o755}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		h := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), ModTime: at, Typeflag: tar.TypeReg, Size: int64(len(e.data)), Format: tar.FormatPAX}
		switch {
		case e.mode.IsDir():
			h.Name, h.Typeflag = name+"/", tar.TypeDir
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close() // writes the end of the archive
	return b.Bytes(), err
}

// An image is one name with an image for each platform.
type image struct {
	name, title, entrypoint string
	env                     []string
	platforms               []platform
}

type platform struct {
	os, arch string
	layers   []files // the lowest first
}

func (i *image) add(os, arch string, layers ...files) {
	i.platforms = append(i.platforms, platform{os: os, arch: arch, layers: layers})
}

// build returns one platform's image.
func (i image) build(p platform, r release) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range p.layers {
		content, err := l.tar(r.created)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "deploy/image"}}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.created}
	config.Config = v1.Config{Entrypoint: []string{i.entrypoint}, Cmd: []string{"run"}, Env: i.env, Labels: i.labels(r)}
	return mutate.ConfigFile(img, config)
}

// labels are the keys that the OCI image specification defines (annotations.md).
func (i image) labels(r release) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    i.title,
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.created":  r.created.Format(time.RFC3339),
		"org.opencontainers.image.source":   "https://github.com/nkp-proxy/nkp",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// write writes DIST/NAME-image.tar.
func (i image) write(r release) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range i.platforms {
		img, err := i.build(p, r)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	}
	dir, err := os.MkdirTemp("", "nkp-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	// containerd takes the whole name from its own annotation; skopeo and crane take the tag from the specification's.
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          fmt.Sprintf("%s/%s:%s", r.registry, i.name, r.version),
		"org.opencontainers.image.ref.name": r.version,
	})); err != nil {
		return err
	}
	return pack(dir, filepath.Join(r.dist, i.name+"-image.tar"), r.created)
}

// pack writes a folder as a tar.
func pack(dir, target string, at time.Time) error {
	content := files{}
	if err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		content[strings.TrimPrefix(filepath.ToSlash(p), filepath.ToSlash(dir)+"/")] = file{data: data, mode: 0o644}
		return err
	}); err != nil {
		return err
	}
	text, err := content.tar(at)
	if err != nil {
		return err
	}
	return os.WriteFile(target, text, 0o644)
}
