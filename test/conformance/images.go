package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Images of the cluster itself. Those of the tests have upstream's names, which the program k8s/images prints.
const (
	corednsImage   = "conformance.test/coredns:1"
	kubeProxyImage = "conformance.test/kube-proxy:1"
	nkpImage       = "registry.example.com/nkp:" // and a tag
	nkpIPTables    = "registry.example.com/nkp-iptables:"
)

// searchPath is PATH in images with a Debian in them.
var searchPath = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// image is one image to write.
type image struct {
	names      []string
	layers     [][]byte
	entrypoint []string
	command    []string
	env        []string
}

// file is a file of a layer: a copy of host, a link, or a directory that everyone may write to if both are empty.
type file struct{ host, link string }

// buildImages writes archives that containerd imports, as no registry is asked.
func (s *settings) buildImages(ctx context.Context) error {
	source, err := s.moduleField(ctx, "k8s", "k8s.io/kubernetes", "Dir")
	if err != nil {
		return err
	}
	if err := s.command(ctx, "", "gcc", "-Os", "-static", "-DVERSION=conformance", "-o", s.kube("bin/pause"), filepath.Join(source, "build/pause/linux/pause.c")); err != nil {
		return err
	}
	if err := s.compile(ctx, "k8s", "build", "-trimpath", "-o", s.kube("bin/regression-issue-74839"), "k8s.io/kubernetes/test/images/regression-issue-74839"); err != nil {
		return err
	}
	names, err := s.imageNames(ctx)
	if err != nil {
		return err
	}
	debian, err := os.ReadFile(s.rootfs())
	if err != nil {
		return err
	}
	porter := filepath.Join(source, "test/images/agnhost/porter")
	agnhost, err := layer(map[string]file{
		"agnhost": {host: s.kube("bin/agnhost")}, "agnhost-2": {link: "agnhost"}, "uploads/": {}, "coredns": {host: s.bin("coredns")},
		"localhost.crt": {host: filepath.Join(porter, "localhost.crt")}, "localhost.key": {host: filepath.Join(porter, "localhost.key")},
	})
	if err != nil {
		return err
	}
	applets := map[string]file{"bin/busybox": {host: "/bin/busybox"}, "tmp/": {}}
	for name := range strings.FieldsSeq("sh cat ls sleep wget nc echo date hostname env true false top ip ping grep sed awk head tail touch mkdir rm id nslookup test") {
		applets["bin/"+name] = file{link: "busybox"}
	}
	busybox, err := layer(applets)
	if err != nil {
		return err
	}
	programs := map[string][]byte{}
	for path, host := range map[string]string{"pause": s.kube("bin/pause"), "regression-issue-74839": s.kube("bin/regression-issue-74839"),
		"coredns": s.bin("coredns"), "usr/local/bin/hyperkube": s.kube("bin/hyperkube")} {
		if programs[path], err = layer(map[string]file{path: {host: host}}); err != nil {
			return err
		}
	}
	only := func(program string, names ...string) image {
		return image{names: names, layers: [][]byte{programs[program]}, entrypoint: []string{"/" + program}}
	}
	if err := writeArchive(s.kube("images/tests.tar"), []image{
		{names: names["agnhost"], layers: [][]byte{debian, agnhost}, entrypoint: []string{"/agnhost"}, command: []string{"pause"}, env: searchPath},
		{names: names["busybox"], layers: [][]byte{busybox}, command: []string{"sh"}, env: searchPath},
		{names: names["debian"], layers: [][]byte{debian}, command: []string{"sleep", "infinity"}, env: searchPath},
		only("regression-issue-74839", names["regression-issue-74839"]...), only("pause", names["pause"]...), only("coredns", corednsImage),
	}); err != nil {
		return err
	}
	if err := os.WriteFile(s.kube("pause-image"), []byte(names["pause"][0]+"\n"), 0o644); err != nil {
		return err
	}
	proxies, err := nkpImages(debian, s.bin("nkp"), "conformance")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(s.bin("nkp"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.nkpInImages(), program, 0o755); err != nil {
		return err
	}
	return writeArchive(s.kube("images/proxies.tar"), append(proxies,
		image{names: []string{kubeProxyImage}, layers: [][]byte{debian, programs["usr/local/bin/hyperkube"]}, entrypoint: []string{"/usr/local/bin/hyperkube", "kube-proxy"}, env: searchPath}))
}

// nkpInImages returns the path of a copy of the nkp that is in the images, whose version a record has.
func (s *settings) nkpInImages() string { return s.kube("images/nkp") }

// nkpImages returns nkp's images, as deploy/image makes them, with a program and a tag.
func nkpImages(debian []byte, program, tag string) ([]image, error) {
	plain, err := layer(map[string]file{"nkp": {host: program}})
	if err != nil {
		return nil, err
	}
	inDebian, err := layer(map[string]file{"usr/bin/nkp": {host: program}})
	if err != nil {
		return nil, err
	}
	return []image{
		{names: []string{nkpImage + tag}, layers: [][]byte{plain}, entrypoint: []string{"/nkp"}, command: []string{"run"}},
		{names: []string{nkpIPTables + tag}, layers: [][]byte{debian, inDebian}, entrypoint: []string{"/usr/bin/nkp"}, command: []string{"run"}, env: searchPath},
	}, nil
}

// imageNames returns the names of upstream's images by what they hold.
func (s *settings) imageNames(ctx context.Context) (map[string][]string, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./images")
	cmd.Dir, cmd.Env, cmd.Stderr = filepath.Join(s.module(), "k8s"), s.environ("k8s"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("names of images: %w", err)
	}
	names := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		holds, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("names of images: %q", line)
		}
		names[holds] = append(names[holds], name)
	}
	for _, holds := range []string{"agnhost", "busybox", "debian", "regression-issue-74839", "pause"} {
		if len(names[holds]) == 0 {
			return nil, fmt.Errorf("no image for %s", holds)
		}
	}
	return names, nil
}

// layer returns the layer of an image with files by path; a directory's path ends with a slash.
func layer(files map[string]file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		h, content := &tar.Header{Name: path, Mode: 0o755}, []byte(nil)
		switch f := files[path]; {
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		case f.host != "":
			var err error
			if content, err = os.ReadFile(f.host); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		default:
			h.Typeflag, h.Mode = tar.TypeDir, int64(fs.ModePerm)|0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// writeArchive writes images in the OCI image layout, with the annotation by which containerd names them.
func writeArchive(path string, images []image) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	a := &archive{w: tar.NewWriter(out), written: map[string]bool{}}
	a.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	type object = map[string]any
	var manifests []object
	for _, i := range images {
		var layers []object
		var ids []string
		for _, l := range i.layers {
			d := a.blob("application/vnd.oci.image.layer.v1.tar", l)
			layers, ids = append(layers, d), append(ids, d["digest"].(string))
		}
		config := a.blob("application/vnd.oci.image.config.v1+json", marshal(object{
			"architecture": "amd64", "os": "linux", "config": object{"Entrypoint": i.entrypoint, "Cmd": i.command, "Env": i.env},
			"rootfs": object{"type": "layers", "diff_ids": ids},
		}))
		const kind = "application/vnd.oci.image.manifest.v1+json"
		manifest := a.blob(kind, marshal(object{"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}))
		for _, name := range i.names {
			named := maps.Clone(manifest)
			named["annotations"] = object{"io.containerd.image.name": name}
			manifests = append(manifests, named)
		}
	}
	a.add("index.json", marshal(object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}))
	if a.err != nil {
		return a.err
	}
	if err := a.w.Close(); err != nil {
		return err
	}
	return out.Close()
}

// archive writes files into a tar file; err is the first error.
type archive struct {
	w       *tar.Writer
	written map[string]bool
	err     error
}

func (a *archive) add(name string, content []byte) {
	if a.err == nil {
		a.err = a.w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))})
	}
	if a.err == nil {
		_, a.err = io.Copy(a.w, bytes.NewReader(content))
	}
}

// blob adds content under its digest, once, and returns its descriptor.
func (a *archive) blob(mediaType string, content []byte) map[string]any {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	if !a.written[sum] {
		a.written[sum] = true
		a.add("blobs/sha256/"+sum, content)
	}
	return map[string]any{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps and strings alone
	}
	return text
}
