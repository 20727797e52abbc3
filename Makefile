# nkp: make demo, make test. Both install what they lack (see .ci/install-deps).

GO      ?= .ci/go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/nkp-proxy/nkp/internal/agent.Version=$(VERSION)

.PHONY: all build demo test lint unit datapath fuzz bench clean deps help

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
	$(GO) test -timeout 14m ./...

lint: ## formatting, vet on both systems, import directions
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) test -run 'TestImportDirections|TestEveryPackageHasADocComment' .

clean: ## remove what was built
	rm -rf bin
