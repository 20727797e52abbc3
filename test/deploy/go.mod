module github.com/nkp-proxy/nkp/test/deploy

go 1.26.8

replace github.com/nkp-proxy/nkp => ../..

replace (
	antrea.io/libOpenflow => github.com/antrea-io/libOpenflow v0.15.0
	antrea.io/ofnet => github.com/antrea-io/ofnet v0.14.0
)

require (
	github.com/coreos/go-systemd/v22 v22.7.0
	github.com/elastic/go-seccomp-bpf v1.5.0
	github.com/google/go-containerregistry v0.22.1
	github.com/nkp-proxy/nkp v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.49.0
)

require (
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
