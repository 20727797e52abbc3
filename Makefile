# nkp: make demo, make test. Both install what they lack (see .ci/install-deps).

GO      ?= .ci/go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/nkp-proxy/nkp/internal/agent.Version=$(VERSION)

.PHONY: all build check docs demo test test-all nightly verify dist dist-check images test-bench test-deploy test-ui deploy-check test-kernel test-offload test-windows e2e differential peers lint fuzz faults picture recording clean deps help bench bench-quick bench-kernel conformance conformance-smoke test-conformance

all: build

help: ## what there is to make
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps: ## install what building and testing need (apt, Go modules)
	@.ci/install-deps

build: ## build bin/nkp
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/nkp .

demo: ## the guestbook's Services on a private switch (KEEP=1 leaves it running)
	@.ci/install-deps demo
	@echo "building nkp (the first time takes a few minutes)..."
	@$(MAKE) --no-print-directory build
	@$(GO) build -trimpath -o bin/demo ./hack/demo
	@bin/demo -nkp bin/nkp -manifests examples/guestbook.yaml

# Packages whose tests take longest start first, beside one other.
LONG        = ./test/packets ./test/semantics ./fallback
TESTED      = $(LONG) $$($(GO) list ./... | grep -vE '/test/(fallback|faults)')
TESTTIMEOUT = 30m

test: deps ## what every change needs: unit tests, and packets through a private switch (make lint vets them)
	@mkdir -p bin
	$(GO) build -o bin/nkp-under-test .
	NKP_BINARY=$(CURDIR)/bin/nkp-under-test $(GO) test -vet=off -p 2 -timeout $(TESTTIMEOUT) $(TESTED)

# The same with the tests that run at night only, in suites of at most half an hour. Those of test/packets are divided by the
# first letter of a test's name. hack/gate's TestNightIsWhole holds that each test is in exactly one of them.
NIGHT = test-all-units test-all-fallback test-all-semantics \
	test-all-packets-1 test-all-packets-2 test-all-packets-3 test-all-packets-4 test-all-packets-5 test-all-packets-6
test-all-units:     TESTED = $$($(GO) list ./... | grep -vE '/test/(packets|semantics|fallback|faults)$$|/nkp/fallback$$')
test-all-fallback:  TESTED = ./fallback
test-all-semantics: TESTED = ./test/semantics
test-all-packets-1: TESTED = ./test/packets -run '^Test[A-C]'
test-all-packets-2: TESTED = ./test/packets -run '^Test[D-G]'
test-all-packets-3: TESTED = ./test/packets -run '^Test[H-M]'
test-all-packets-4: TESTED = ./test/packets -run '^Test[N-R]'
test-all-packets-5: TESTED = ./test/packets -run '^Test[^A-RT-Z]'
test-all-packets-6: TESTED = ./test/packets -run '^Test[T-Z]'

.PHONY: $(NIGHT)
$(NIGHT): deps
	@.ci/install-deps ovn
	@mkdir -p bin
	$(GO) build -o bin/nkp-under-test .
	NKP_NIGHTLY=1 NKP_BINARY=$(CURDIR)/bin/nkp-under-test $(GO) test -count=1 -v -vet=off -p 2 -timeout 3h $(TESTED)

test-all: ## what make test runs, and the tests that run at night only: long ones, random ones, all data planes (hours)
	@$(MAKE) --no-print-directory --keep-going $(NIGHT)

nightly: deps ## the suites that are not for every change, one after the other; records them in .ci/nightly.json (hours; SUITES="e2e faults": those)
	$(GO) run ./hack/gate nightly $(SUITES)

# What needs no test bed.
CHECKED = . ./fallback/... ./hack/picture ./hack/reference ./internal/... ./k8s/... ./ofctrl/... ./ovsdb/... ./pipeline/... ./test/ofctrltest ./windows/...

check: lint ## before each commit, two minutes when built: lint, and the tests that need no test bed
	$(GO) test -vet=off -short $(CHECKED)

verify: ## what was downloaded, for every module, is what its go.sum says
	@for dir in $$(git ls-files '*go.mod' | xargs -n 1 dirname); do \
		echo "go -C $$dir mod verify"; $(GO) -C $$dir mod verify || exit 1; \
	done

peers: deps ## iptables and nftables beside kube-proxy: take-over without a gap, metrics (first build: 3 minutes)
	NKP_NIGHTLY=1 $(GO) test -count=1 -timeout 60m -v ./test/fallback

faults: deps ## disturb agent, channel, database and switch under load (NKP_FAULTS_LONG=1: half an hour)
	$(GO) test -count=1 -timeout 60m -v ./test/faults

# staticcheck finds packages with the go on PATH. Suites of other modules run it on themselves: it compiles what they require.
STATICCHECK = PATH="$$(cd $(CURDIR) && $(GO) env GOROOT)/bin:$$PATH" $(CURDIR)/bin/tools/staticcheck

bin/tools/staticcheck: .ci/lint/go.mod .ci/lint/go.sum
	@mkdir -p bin/tools
	$(GO) -C .ci/lint build -o $(CURDIR)/bin/tools/ tool
	@touch $@

lint: deps bin/tools/staticcheck ## formatting, vet on both systems, staticcheck, workflows
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	GOOS=windows $(GO) vet ./...
	$(STATICCHECK) ./...
	bin/tools/actionlint -shellcheck= -pyflakes= # without the checkers that it calls if they are there

e2e: deps bin/tools/staticcheck ## a real kube-apiserver, EndpointSlice controller, Open vSwitch and nkp (first build: 3 minutes)
	cd test/k8s && $(STATICCHECK) ./e2e/...
	@# The tests build a kube-apiserver, helm and kubectl: without a build cache that takes longer than their time limit.
	$(GO) build -C test/k8s -o /dev/null ./e2e/kubeserver
	$(GO) build -C deploy/helm -o /dev/null helm.sh/helm/v3/cmd/helm
	$(GO) build -C test/conformance/k8s -o /dev/null k8s.io/kubernetes/cmd/kubectl
	$(GO) test -C test/k8s -count=1 -timeout 20m ./e2e/...

.PHONY: test-trace
test-trace: deps ## trace --live of 500 random breakages against 2,000 packets, in one run (10 to 20 minutes; not in .ci/run)
	NKP_TRACE_BREAKAGES=500 $(GO) test -count=1 -timeout 80m -v -run '^TestTraceOfBrokenSwitches$$' ./test/packets

.PHONY: e2e-skew
e2e-skew: deps ## the same with an API server of the release before, Kubernetes 1.36
	NKP_E2E_KUBERNETES=1.36 $(GO) test -C test/k8s -count=1 -timeout 20m ./e2e/...

differential: deps bin/tools/staticcheck ## 10,000 random clusters against kube-proxy's own code (first build: 2 minutes)
	cd test/k8s && $(STATICCHECK) ./differential/...
	$(GO) test -C test/k8s -count=1 -timeout 20m ./differential/...

deploy-check: bin/tools/staticcheck ## alerts, dashboard and Helm chart in deploy/ (installs promtool)
	@command -v promtool >/dev/null || .ci/install-deps prometheus
	promtool check rules deploy/prometheus/rules.yaml
	promtool test rules deploy/prometheus/rules_test.yaml
	for dir in deploy/grafana deploy/helm; do (cd $$dir && $(STATICCHECK) ./...) && $(GO) test -C $$dir -count=1 ./... || exit 1; done

# Planes of make conformance, and more flags of test/conformance, such as -overlay ovs-pods-only.
PLANES           ?= ovs iptables nftables kube-proxy
CONFORMANCEFLAGS ?=
CONFORMANCE      = $(GO) run -C test/conformance .

conformance: deps ## Kubernetes' own network tests in a real cluster, for each of PLANES; writes docs/conformance.md (hours; first build: 35 minutes)
	$(CONFORMANCE) build $(CONFORMANCEFLAGS)
	$(CONFORMANCE) run $(CONFORMANCEFLAGS) $(PLANES); status=$$?; \
		$(CONFORMANCE) report $(CURDIR)/docs/conformance.md && exit $$status

conformance-smoke: PLANES = ovs
conformance-smoke: deps ## those of the tests that have found something, in plane ovs or PLANES (10 minutes a plane when built)
	$(CONFORMANCE) build $(CONFORMANCEFLAGS)
	$(CONFORMANCE) run -smoke $(CONFORMANCEFLAGS) $(PLANES)

test-conformance: bin/tools/staticcheck ## the conformance suite's own tests
	$(GO) vet -C test/conformance ./...
	cd test/conformance && $(STATICCHECK) ./...
	$(GO) test -C test/conformance -count=1 ./...

docs: ## write docs/configuration.md from the code, and the chart's copies of manifests
	$(GO) run ./hack/reference
	@# Copies, because Helm warns of symbolic links.
	cp deploy/kubernetes/rbac/rbac.yaml deploy/prometheus/rules.yaml deploy/helm/nkp/files/
	cp deploy/kubernetes/components/metrics/rbac.yaml deploy/helm/nkp/files/metrics-rbac.yaml

test-windows: bin/tools/staticcheck ## the Windows binary under Wine, beside kube-proxy.exe (installs Wine; first build: minutes)
	@.ci/install-deps wine
	@# The tests build kube-proxy.exe: without a build cache that takes longer than their time limit.
	GOOS=windows CGO_ENABLED=0 $(GO) build -C test/k8s -trimpath -o /dev/null k8s.io/kubernetes/cmd/kube-proxy
	GOOS=windows CGO_ENABLED=0 $(GO) build -trimpath -o /dev/null .
	GOOS=windows $(STATICCHECK) -checks inherit,-U1000 ./... # much is used on Linux only
	GOOS=windows $(STATICCHECK) ./windows/...
	$(GO) vet -C test/k8s ./windows/...
	cd test/k8s && $(STATICCHECK) ./windows/... && GOOS=windows $(STATICCHECK) ./windows/...
	$(GO) test -C test/k8s -count=1 -timeout 40m ./windows/...

test-kernel: deps ## the packet tests on the kernel datapath, and mode nftables, with Linux 6.1 in an emulated machine (a few minutes)
	@test/kernel/run

test-offload: deps ## test-kernel with Open vSwitch's flows in tc, as for a NIC with offload (not in .ci/run; builds a kernel first)
	@test/kernel/run --offload

test-deploy: deps bin/tools/staticcheck ## unit, packages, images, guides; the packet tests under the unit's restrictions (5 minutes)
	@.ci/install-deps deploy
	for dir in deploy/image test/deploy; do $(GO) vet -C $$dir ./... && (cd $$dir && $(STATICCHECK) ./...) || exit 1; done
	$(GO) test -C deploy/image -count=1 ./...
	$(GO) test -C test/deploy -count=1 -timeout 10m ./...
	@test/deploy/packets
	@# The tests build a kube-apiserver, helm and kubectl: without a build cache that takes longer than their time limit.
	$(GO) build -C test/k8s -o /dev/null ./e2e/kubeserver
	$(GO) build -C deploy/helm -o /dev/null helm.sh/helm/v3/cmd/helm
	$(GO) build -C test/conformance/k8s -o /dev/null k8s.io/kubernetes/cmd/kubectl
	$(GO) test -C test/k8s -count=1 -timeout 10m -run 'TestManifests|TestNothingIsDenied|TestRights$$' ./e2e

test-ui: deps bin/tools/staticcheck ## nkp ui in headless Chromium on a private switch (PICTURES=docs/ui: new pictures)
	@.ci/install-deps ui
	$(GO) vet -C test/ui ./...
	cd test/ui && $(STATICCHECK) ./...
	$(GO) build -o bin/nkp-under-test .
	NKP_BINARY=$(CURDIR)/bin/nkp-under-test NKP_UI_PICTURES=$(abspath $(PICTURES)) $(GO) test -C test/ui -count=1 -timeout 5m ./...

PICTURES ?= bin/ui

dist: ## release files in dist/: binaries, .deb, .rpm, images, overlays, SBOMs, SHA256SUMS (first run: fetches nfpm)
	@rm -rf dist
	@VERSION=$(VERSION) deploy/package/dist dist

images: deps ## container images in dist/, as OCI archives: no container engine, no registry (fetches 4 MB of Debian packages)
	@VERSION=$(VERSION) deploy/package/binaries dist amd64 arm64
	@VERSION=$(VERSION) deploy/image/build dist amd64 arm64

dist-check: ## the same commit gives the same release files, wherever it is built
	@VERSION=$(VERSION) deploy/package/check

# A quiet machine, please: half an hour of a busy one tells nothing.
BENCH = @PATH="$$($(GO) env GOROOT)/bin:$$PATH" $(GO) run -C test/bench . -root $(CURDIR)

bench: deps ## nkp beside kube-proxy, ovs-ofctl and no proxy at all; writes docs/benchmarks.md and README.md's numbers (25 minutes; first build: 4; BENCHFLAGS=-huge: 50,000 Services, too; alone, printed only: -huge -sizes 1000x5,50000x5,5000x50)
	@mkdir -p bin
	$(BENCH) -raw $(CURDIR)/bin/bench.json $(BENCHFLAGS)

bench-quick: deps ## the same up to 1,000 Services, printed only (5 minutes)
	$(BENCH) -quick $(BENCHFLAGS)

.PHONY: trend
trend: deps ## nkp's ratios beside ovs-ofctl, kube-proxy, bare restores and direct connections, against the recorded ones (10 minutes; TRENDFLAGS=-record: record them)
	$(BENCH) -trend $(CURDIR)/test/bench/trend.json $(TRENDFLAGS)

bench-kernel: deps ## VIP against direct on the kernel datapath, in an emulated machine (8 minutes; only its ratios mean something)
	@test/kernel/run --bench

test-bench: bin/tools/staticcheck ## the benchmark's own tests
	$(GO) vet -C test/bench ./...
	cd test/bench && $(STATICCHECK) ./...
	$(GO) test -C test/bench -count=1 ./...

FUZZTIME ?= 10s
FUZZDIRS := k8s ofctrl ovsdb fallback internal/ports internal/agent internal/command internal/config internal/conntrack internal/dpctl internal/live internal/ncpini

fuzz: ## every fuzz target for FUZZTIME (10s): what switch, database, manifests, programs and users may say
	@grep -rlE '^func Fuzz' --include='*_test.go' $(FUZZDIRS) | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$dir/*_test.go | sed 's/func //'); do \
			.ci/fuzz $(GO) $$dir $$target $(FUZZTIME) || exit 1; \
		done; \
	done

recording: ## write docs/demo.svg: make demo, as the README shows it
	$(GO) run ./hack/record -o docs/demo.svg make demo

picture: ## docs/pipeline.svg, from compiled flows (needs Debian's graphviz)
	$(GO) run ./hack/picture

clean: ## remove what was built
	rm -rf bin dist
