# Yoke's commands. The crates `dev` (the development stack), `e2e` and `xtask` implement them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
DEV := $(or $(CARGO_TARGET_DIR),target)/debug/yoke-dev
BIN := $(CURDIR)/.dev/bin
REPORT := $(or $(CARGO_TARGET_DIR),target)/test-report.txt
# Marks a failed step in the report. Tests that did not compile have no result line to count.
FAILED = echo "== failed" | tee -a $(REPORT)
# Kubernetes versions between which the upgrade test moves a cluster. The stack's own version is the older one.
SLOW_VERSIONS := 1.35.4 1.35.5

# Number of runs of the store's slow tests: Kubernetes' storage tests, etcd's robustness tests and the oracle. Some of
# Kubernetes' tests count metrics of the whole process, so `-test.count` would fail them.
COUNT ?= 5
ROBUSTNESS_RUNS ?= 100
ORACLE_RUNS ?= 40
# Number of times that a Cluster sleeps and wakes. Each takes twelve seconds, after some minutes until it first falls
# asleep by itself.
CYCLES ?= 200

# Number of parallel tests. Tests of crates mostly wait for servers, so there are more tests than cores.
WAITING := 6

# A failed test prints its error last. A backtrace would push the error out of the log's end.
export RUST_BACKTRACE := 0

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/yoke
# Compilers that dev/toolchains.sh installed. The folders do not exist if the computer has its own compilers.
export PATH := $(CACHE)/toolchains/rust/bin:$(CACHE)/toolchains/go/bin:$(PATH)
# All clones share compiled dependencies, like the rest of the build cache. Binaries stay in the clone's target/.
export CARGO_BUILD_BUILD_DIR ?= $(CACHE)/rust
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)
MDBOOK_VERSION := 0.5.4
MDBOOK := $(CACHE)/mdbook-$(MDBOOK_VERSION)

# CI builds a clone once. Incremental data, which speeds up a second build, would only fill the shared folder.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

# $(call timed,NAME,COMMAND): runs a step and prints its duration.
define timed
	@echo "== $(1)"; begun=$$(date +%s.%N); $(2); \
	printf '== %s took %.1f s\n' "$(1)" "$$(echo "$$(date +%s.%N) $$begun" | awk '{print $$1 - $$2}')"
endef

# $(call some,COMMAND): runs tests, and fails if no test ran. Cargo accepts a filter that matches no test.
define some
$(1) 2>&1 | tee $(REPORT); awk '/^test result:/ {p += $$4} END {if (!p) {print "no test ran"; exit 1}}' $(REPORT)
endef

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# Builds the program that builds and starts everything else, and installs missing compilers.
.PHONY: yoke-dev
yoke-dev:
	@dev/toolchains.sh $(CACHE)/toolchains
	@echo "== yoke-dev, which builds and starts everything else"
	@$(CARGO) build --package yoke-dev || { echo "  try: fix the compiler errors, or make crates.io reachable; then run \`make $(or $(MAKECMDGOALS),up)\` again" >&2; exit 1; }

.PHONY: up
up: yoke-dev ## Build what is missing and start the development stack, with a demo cluster on it
	@$(DEV) up

# The program that started a stack also stops it and shows its state. That needs no compiler, so a workspace that does
# not compile cannot keep a stack running.
ifneq ($(wildcard .dev/bin/yoke-dev),)
down status worker host-node: STARTED := .dev/bin/yoke-dev
else
down status worker host-node: STARTED := $(DEV)
down status worker host-node: yoke-dev
endif

.PHONY: down
down: ## Stop the development stack and remove all of it except the build cache
	@$(STARTED) down

.PHONY: status
status: ## Show the state of every component
	@$(STARTED) status

.PHONY: worker
worker: ## Add a worker to the demo cluster
	@$(STARTED) worker

.PHONY: host-node
host-node: ## Add a node to the host cluster
	@$(STARTED) host-node

# Third-party programs that the stack and the tests of crates need: nats-server, Envoy, helm and others.
.PHONY: tools
tools: yoke-dev ## Build third-party programs into .dev/bin
	$(call timed,tools,$(DEV) up --until binaries)

.PHONY: images
images: tools ## Write the images of Yoke's processes to .dev/images, to push to a registry
	@$(DEV) images

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

# Steps of both `lint` and `check`. Without helm, which `tools` builds, `cargo xtask check` skips the chart.
FORMAT = $(CARGO) fmt --all --check
LINTS = RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/.cargo/clippy $(CARGO) check --workspace --all-targets --all-features
RULES = $(CARGO) xtask check

# The unit tests are built from the same packages as those of `test`, so cargo chooses the same features and builds
# nothing twice. They need two programs of Debian's packages, which `tools` installs: openssl (yoke-pki) and
# systemd-analyze (yoke-worker).
.PHONY: check
check: ## Format, lint and unit-test; under two minutes after a small change
	@dev/toolchains.sh $(CACHE)/toolchains
	$(call timed,format,$(FORMAT))
	$(call timed,lints,$(LINTS))
	$(call timed,unit tests,$(CARGO) test --workspace --exclude yoke-e2e --lib --bins)
	$(call timed,xtask,$(RULES))

.PHONY: lint
lint: tools ## Check format, lints, and the repository's own rules (xtask)
	$(call timed,format,$(FORMAT))
	$(call timed,lints,$(LINTS))
	$(call timed,xtask,$(RULES))

# The tests of tenants run in parallel. Tests that disturb the whole stack run one after the other. All tests run even if
# some fail. The last line counts the results of all tests, and its exit status says whether one failed.
.PHONY: test
test: lint deny ## Run all checks and tests, including end-to-end tests on the running stack
	$(call timed,binaries,$(DEV) up --until workspace)
	@: > $(REPORT)
	$(call timed,unit and crate tests,YOKE_BIN=$(BIN) RUST_TEST_THREADS=$(WAITING) $(CARGO) test --workspace --exclude yoke-e2e --no-fail-fast 2>&1 | tee -a $(REPORT) || $(FAILED))
	$(call timed,stack,$(MAKE) --no-print-directory up)
	$(call timed,end-to-end tests of tenants,$(CARGO) test --package yoke-e2e --no-fail-fast --lib --test tenants -- --test-threads=4 2>&1 | tee -a $(REPORT) || $(FAILED))
	$(call timed,end-to-end tests that disturb the stack,$(CARGO) test --package yoke-e2e --no-fail-fast --test machine -- --test-threads=1 2>&1 | tee -a $(REPORT) || $(FAILED))
	@awk '/^test result:/ {p += $$4; f += $$6; i += $$8} /^== failed$$/ {bad = 1} \
		END {printf "== %d tests passed, %d failed, %d ignored\n", p, f, i; exit bad}' $(REPORT)

# This does not check for known vulnerabilities, which needs a download: `$(DENY)/bin/cargo-deny check advisories`.
.PHONY: deny
deny: yoke-dev ## Check versions, licences and sources of the dependencies
	@[ -x $(DENY)/bin/cargo-deny ] || $(CARGO) install cargo-deny --quiet --locked --debug --version $(DENY_VERSION) --root $(DENY)
	$(call timed,dependencies,$(DENY)/bin/cargo-deny check bans licenses sources)

# The generated pages and the links are checked by `cargo xtask check`.
.PHONY: docs
docs: ## Build the book into target/book
	@dev/toolchains.sh $(CACHE)/toolchains
	@[ -x $(MDBOOK)/bin/mdbook ] || $(CARGO) install mdbook --quiet --locked --debug --no-default-features --features search --version $(MDBOOK_VERSION) --root $(MDBOOK)
	$(call timed,book,$(MDBOOK)/bin/mdbook build docs/book)

.PHONY: test-slow
test-slow: tools ## Run the slow tests
	$(call timed,clean clone,e2e/clean-clone.sh)
	$(call timed,stack with two versions and metrics-server,YOKE_VERSIONS="$(SLOW_VERSIONS)" YOKE_METRICS_SERVER=true $(MAKE) --no-print-directory up)
	$(call timed,version upgrade,$(call some,$(CARGO) test --package yoke-e2e --features slow --test upgrade))
	$(call timed,kubectl top of the stack,$(call some,$(CARGO) test --package yoke-e2e --features slow --test top))
	$(call timed,kubectl top of real kubelets,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-worker --features slow --test worker -- top))
	$(call timed,kubelets of two versions,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-worker --features slow --test worker -- second_release))
	$(call timed,lost node of the host,$(call some,$(CARGO) test --package yoke-e2e --features slow --test node_loss -- --nocapture))
	$(call timed,drained node of the host,$(call some,$(CARGO) test --package yoke-e2e --features slow --test takeover -- --nocapture))
	$(call timed,silent worker,$(call some,$(CARGO) test --package yoke-e2e --features slow --test silence -- --nocapture))
	$(call timed,sleep and wake,$(call some,CYCLES=$(CYCLES) $(CARGO) test --package yoke-e2e --features slow --test cycles -- --nocapture))
	$(call timed,Kubernetes end-to-end tests,YOKE_BIN=$(BIN) e2e/conformance/run.sh .dev/demo.kubeconfig)
	$(call timed,third-party xDS client,$(call some,$(CARGO) test --package yoke-ingress-xds --features slow --test ingress -- foreign))
	$(call timed,malicious and corrupt bytes,$(call some,FUZZ_TIMES=20 YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats -- hostile damage))
	$(call timed,random requests to two stores,$(call some,ORACLE_RUNS=$(ORACLE_RUNS) YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --test store -- oracle))
	$(call timed,replicated stores with failing servers,$(call some,FUZZ_TIMES=2 YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --test store -- replicated))
	$(call timed,caches of Kubernetes,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --features slow --test store -- kubernetes --nocapture))
	$(call timed,Kubernetes storage tests,for time in $$(seq $(COUNT)); do YOKE_BIN=$(BIN) KINE_NATS=$(BIN)/kine-nats kine-nats/contract/storage-suite.sh || exit 1; done)
	$(call timed,etcd robustness tests,YOKE_BIN=$(BIN) KINE_NATS=$(BIN)/kine-nats kine-nats/contract/robustness.sh -runs $(ROBUSTNESS_RUNS))

# CHAOS_SECONDS sets the duration, CHAOS_SEED the sequence of faults.
.PHONY: chaos
chaos: up ## Inject random faults into control planes and a node for ten minutes, and check every acknowledged write
	$(call timed,second node of the host,$(BIN)/yoke-dev host-node --number 2)
	$(call timed,chaos,$(CARGO) test --package yoke-e2e --features slow --test chaos -- --nocapture)

# The binaries in release first: those of the stack are built for tests.
BENCH_PATH = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release:$(CURDIR)/.dev/peers:$(BIN):$$PATH

.PHONY: bench-store
bench-store: tools ## Measure the store beside etcd and Go kine (ARGS="--rounds 1" and others: see ARGS=--help)
	$(call timed,peers,CGO_ENABLED=0 GOTOOLCHAIN=local go build -C bench/store/peers -tags nats -ldflags "-s -w" -o $(CURDIR)/.dev/peers/ github.com/k3s-io/kine go.etcd.io/etcd/v3/tools/benchmark)
	$(call timed,stores,$(CARGO) build --release --package yoke-kine-nats --package yoke-store-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-store-bench stores $(ARGS))

.PHONY: bench-fleet
bench-fleet: tools ## Measure 1,372 kinds and a million objects (ARGS="--crds 20 --objects 2000" for a look)
	$(call timed,stores,$(CARGO) build --release --package yoke-kine-nats --package yoke-store-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-store-bench fleet $(ARGS))

.PHONY: bench-idle
bench-idle: tools ## Measure control planes that nobody uses, without each setting (ARGS=--help)
	$(call timed,peers,CGO_ENABLED=0 GOTOOLCHAIN=local go build -C bench/store/peers -tags nats -ldflags "-s -w" -o $(CURDIR)/.dev/peers/ github.com/k3s-io/kine)
	$(call timed,stores,$(CARGO) build --release --package yoke-kine-nats --package yoke-store-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-store-bench idle $(ARGS))

.PHONY: bench-ingress
bench-ingress: tools ## Measure the ingress with 10,000 clusters (ARGS="--clusters 200" for a look)
	$(call timed,ingress,$(CARGO) build --release --package yoke-ingress-xds --package yoke-ingress-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-ingress-bench $(ARGS))

.PHONY: bench-operator
bench-operator: tools ## Measure the operator with 10,000 clusters (ARGS="--clusters 200" for a look)
	$(call timed,operator,$(CARGO) build --release --package yoke-operator --package yoke-operator-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-operator-bench $(ARGS))

.PHONY: bench-density
bench-density: yoke-dev ## Measure a thousand clusters on this machine (ARGS="--clusters 50 --awake 3" for a look)
	$(call timed,stack,YOKE_PROFILE=release $(DEV) up)
	$(call timed,measurements,$(CARGO) run --quiet --package yoke-cluster-bench --bin yoke-bench-density -- $(ARGS))

.PHONY: bench
bench: yoke-dev ## Measure one cluster and a hundred, on a stack built for speed
	$(call timed,stack,YOKE_PROFILE=release $(DEV) up)
	$(call timed,one cluster,$(CARGO) run --quiet --package yoke-cluster-bench --bin yoke-bench)
	$(call timed,a hundred clusters,$(CARGO) run --quiet --package yoke-cluster-bench --bin yoke-bench-density -- --clusters 100 --awake 5 --rest 30)
