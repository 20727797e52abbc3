# nkp: make demo, make test. Both install what they lack (see .ci/install-deps).

GO      ?= .ci/go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/nkp-proxy/nkp/internal/agent.Version=$(VERSION)

.PHONY: all build demo test test-kernel test-windows e2e differential peers lint fuzz clean deps help

all: build

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

deps: ## install what building and testing need (apt, Go modules)
	@.ci/install-deps

build: ## build bin/nkp
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/nkp .

demo: deps ## the guestbook's Services on a private switch (KEEP=1 leaves it running)
	@echo "building nkp (the first time takes a few minutes)..."
	@$(MAKE) --no-print-directory build
	@$(GO) build -trimpath -o bin/demo ./internal/demo
	@bin/demo -nkp bin/nkp -manifests examples/guestbook.yaml

test: deps lint ## all tests: unit, and packets through a private switch
	$(GO) test -timeout 14m $$($(GO) list ./... | grep -v /test/fallback)

peers: deps ## iptables beside kube-proxy: take-over without a gap, and speed (first build: 3 minutes)
	@command -v nft >/dev/null || .ci/install-deps nft
	$(GO) test -count=1 -timeout 20m ./test/fallback

lint: ## formatting, vet on both systems, import directions
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	GOOS=windows $(GO) vet ./...
	$(GO) test -run 'TestImportDirections|TestEveryPackageHasADocComment' .

e2e: deps ## a real kube-apiserver, EndpointSlice controller, Open vSwitch and nkp (first build: 3 minutes)
	$(GO) test -C test/e2e -count=1 -timeout 12m ./...

differential: deps ## 10,000 random clusters against kube-proxy's own code (first build: 2 minutes)
	$(GO) test -C test/differential -count=1 -timeout 12m ./...

test-windows: ## the Windows binary under Wine, beside kube-proxy.exe (installs Wine; first build: minutes)
	@.ci/install-deps wine
	$(GO) test -C test/windows -count=1 -timeout 15m ./...

test-kernel: deps ## the packet tests on the kernel datapath, in an emulated machine (a few minutes)
	@test/kernel/run

FUZZTIME ?= 10s
FUZZDIRS := k8s ofctrl ovsdb pipeline internal/ports

fuzz: ## every fuzz target for FUZZTIME (10s): what switch, database and manifests may send
	@grep -rlE '^func Fuzz' --include='*_test.go' $(FUZZDIRS) | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$dir/*_test.go | sed 's/func //'); do \
			echo "$$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x ./$$dir || exit 1; \
		done; \
	done

clean: ## remove what was built
	rm -rf bin
