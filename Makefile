# Inference Metrics Adapter. `make help` lists what there is; CONTRIBUTING.md explains it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= localhost/inference-metrics-adapter:$(VERSION)
# The image's bases; empty means the Dockerfile's own, which are public images.
BUILDER ?=
BASE    ?=
BUILDAH ?= buildah

# The same flags as in the Dockerfile, so that both fill and use one build cache.
GO_BUILD := CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

##@ Try it

.PHONY: demo
demo: build ## Watch three emulated engines through the real API; HOLD=1 leaves it up
	@HOLD=$(HOLD) hack/demo.sh

##@ Build

.PHONY: build
build: ## Build bin/adapter and bin/engine-emulator
	$(GO_BUILD) -o bin/ ./cmd/...

.PHONY: image
image: ## Build the container image (IMAGE, BUILDER, BASE, BUILDAH)
	$(BUILDAH) bud --build-arg VERSION=$(VERSION) \
	  $(if $(BUILDER),--build-arg BUILDER=$(BUILDER)) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  --tag $(IMAGE) .

##@ Test

.PHONY: unit
unit: verify ## The quick part: unit tests, lint, generated files
	go test ./...

.PHONY: test
test: deps unit vuln licences fuzz-briefly lint-cluster test-demo test-browser test-image test-cluster ## Everything that CI runs, installing what it needs

# Never from go's test cache, which does not see the programs that these tests build and run.
.PHONY: test-cluster
test-cluster: ## Tests on a real control plane (etcd, kube-apiserver, HPA controller, kwok, Prometheus)
	go -C test/cluster test -count 1 -p 1 -timeout 60m ./...

.PHONY: test-browser
test-browser: ## Look at the status page with a real Chromium; screenshots are in artifacts/
	go -C test/browser test -count 1 ./...

.PHONY: test-demo
test-demo: build ## The demo, and that a queue is seen to grow and a lost engine to have no value
	@mkdir -p artifacts
	hack/demo.sh | tee artifacts/demo.txt
	@awk '/^3\./ { step = 3 } /^4\./ { step = 4 } \
	  step == 3 && $$1 == "vllm-0" && $$4 > 0 { queue = 1 } \
	  step == 4 && $$1 == "vllm-2" && $$4 == "-" { lost = 1 } \
	  END { if (!queue || !lost) { print "the demo does not show what it says"; exit 1 } }' artifacts/demo.txt

.PHONY: test-image
test-image: ## Build the image without any registry, and run the program from it
	hack/test-image.sh

.PHONY: soak
soak: ## What is too long for CI: the race detector, the cluster tests three times, then the drills at length
	go test -race ./...
	go -C test/cluster test -p 1 -timeout 180m -count 3 ./...
	IMA_SOAK=1 go -C test/cluster test -timeout 120m -count 1 -v ./drills -rewrite

FUZZTIME ?= 1m
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@grep -rl --include '*_test.go' '^func Fuzz' cmd internal pkg | while read -r file; do \
	  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file" | while read -r target; do \
	    echo "$$target in $$(dirname "$$file")"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")" </dev/null || exit 1; \
	  done || exit 1; \
	done

TRUTHCHECKS ?= 2000
.PHONY: truth
truth: ## Hold signals to the truth in TRUTHCHECKS worlds: the property test, longer than in unit
	go test ./pkg/signals -run '^TestSignalsTellTheTruth$$' -count 1 -timeout 0 -rapid.checks $(TRUTHCHECKS) -rapid.seed $$(od -An -N4 -tu4 /dev/urandom)

# In CI: enough to see that each of them runs, and to find what is near the seeds. A number of runs, as a
# time of seconds may be over on a busy machine before the seeds are through.
.PHONY: fuzz-briefly
fuzz-briefly:
	@$(MAKE) --no-print-directory fuzz FUZZTIME=3000x

BENCH_COUNT ?= 6
.PHONY: bench
bench: bin/benchstat ## Benchmarks of a request and of a collection tick, as benchstat text
	@mkdir -p artifacts
	go test -run '^$$' -bench . -benchmem -count $(BENCH_COUNT) ./pkg/provider ./internal/collect | tee artifacts/bench.txt
	@echo; echo 'Copy everything below into a pull request that claims or costs speed:'; echo
	@bin/benchstat artifacts/bench.txt

##@ Supply chain

.PHONY: vuln
vuln: bin/govulncheck ## Known vulnerabilities of what the programs link
	hack/vuln.sh

# A library with another license needs a decision, and then a place in this list.
LICENCES := Apache-2.0,MIT,BSD-2-Clause,BSD-3-Clause,ISC,MPL-2.0
.PHONY: licences
licences: bin/go-licenses ## Licences of what the programs link
	@bin/go-licenses check ./cmd/... --allowed_licenses=$(LICENCES) 2>&1 | \
	  { grep -vE '^W|\.s$$' || true; } # it cannot read assembly, which has the licence of its package
	@echo 'licences: those of the libraries that the programs link are all allowed'

##@ A control plane to play with

.PHONY: cluster-up
cluster-up: ## Start a control plane on loopback; see CONTRIBUTING.md
	go -C test/cluster run ./cmd/cluster up

.PHONY: cluster-down
cluster-down: ## Stop it
	go -C test/cluster run ./cmd/cluster down

##@ Rules

.PHONY: lint
lint: bin/staticcheck bin/logcheck ## gofmt, go vet, staticcheck, structured logging
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  if [[ -n $$unformatted ]]; then echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go vet -vettool=$(CURDIR)/bin/logcheck ./...
	bin/staticcheck ./...

# Not in lint, which stays quick: it compiles a good part of Kubernetes.
.PHONY: lint-cluster
lint-cluster: bin/staticcheck
	cd test/cluster && go vet ./... && $(CURDIR)/bin/staticcheck ./...
	cd test/browser && go vet ./... && $(CURDIR)/bin/staticcheck ./...

.PHONY: verify
verify: lint verify-flags verify-signals ## Lint, and fail where a generated file is not what is committed

.PHONY: update
update: update-flags update-signals update-states ## Write all generated files

.PHONY: verify-flags update-flags
verify-flags: build
	@diff -u docs/adapter-flags.txt <(bin/adapter --help 2>&1) || { echo 'docs/adapter-flags.txt is old: make update-flags'; exit 1; }
update-flags: build
	bin/adapter --help > docs/adapter-flags.txt 2>&1

.PHONY: verify-signals update-signals
verify-signals:
	@go test -run '^TestSignalsDoc$$' . || { echo 'docs/signals.md is old: make update-signals'; exit 1; }
update-signals:
	go test -run '^TestSignalsDoc$$' . -rewrite

# test-cluster verifies it.
.PHONY: update-states
update-states:
	go -C test/cluster test -count 1 ./statetable -rewrite

# A run of the drills themselves, of some minutes; test-cluster verifies that they still end so.
.PHONY: update-drills
update-drills:
	go -C test/cluster test -count 1 ./drills -rewrite

##@ Tools

.PHONY: deps
deps: ## Install the Debian packages that the tests need, where they are missing
	hack/install-deps.sh

# Tools are pinned in a module of their own, which keeps them out of the adapter's go.mod.
bin/%: tools/go.mod tools/go.sum
	GOBIN=$(CURDIR)/bin go -C tools install $$(go -C tools list tool | grep -E '/$*(/v[0-9]+)?$$')

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin artifacts

.PHONY: help
help: ## This
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
