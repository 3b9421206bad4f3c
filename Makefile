# Yoke's commands. What they do is in the crates `dev` (the development stack), `e2e` and `xtask`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
DEV := $(or $(CARGO_TARGET_DIR),target)/debug/yoke-dev
BIN := $(CURDIR)/.dev/bin
REPORT := $(or $(CARGO_TARGET_DIR),target)/test-report.txt
# A line that the count at the end looks for: tests that did not compile have no result to count.
FAILED = echo "== failed" | tee -a $(REPORT)
# What the test of a change of version moves a cluster between; the stack's own release is the older one.
SLOW_VERSIONS := 1.35.4 1.35.5

# How often the slow tests of the store run: Kubernetes' own, and etcd's with faults in them. Some of Kubernetes' count
# metrics of the whole process, so that `-test.count` would fail them.
COUNT ?= 5
ROBUSTNESS_RUNS ?= 100
ORACLE_RUNS ?= 40
# How often a Cluster sleeps and wakes: twelve seconds each, after some minutes in which it sleeps by itself.
CYCLES ?= 200

# Tests of crates run servers and wait for them: this many share the cores.
WAITING := 6

# What a failed test says is its error; the frames below it would push that out of a log's end.
export RUST_BACKTRACE := 0

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/yoke
# Compilers that the machine lacked are in the build cache; there is nothing where it has its own.
export PATH := $(CACHE)/toolchains/rust/bin:$(CACHE)/toolchains/go/bin:$(PATH)
# Compiled dependencies are shared by all clones, as the rest of the build cache is; binaries stay in the clone's target/.
export CARGO_BUILD_BUILD_DIR ?= $(CACHE)/rust
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)
MDBOOK_VERSION := 0.5.4
MDBOOK := $(CACHE)/mdbook-$(MDBOOK_VERSION)

# A check builds once: what would make a second build of the same clone quicker only fills the shared folder.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

# $(call timed,NAME,COMMAND): runs a step of a check and prints how long it took.
define timed
	@echo "== $(1)"; begun=$$(date +%s.%N); $(2); \
	printf '== %s took %.1f s\n' "$(1)" "$$(echo "$$(date +%s.%N) $$begun" | awk '{print $$1 - $$2}')"
endef

# $(call some,COMMAND): runs tests, of which there must be one: a filter that matches none would pass.
define some
$(1) 2>&1 | tee $(REPORT); awk '/^test result:/ {p += $$4} END {if (!p) {print "no test ran"; exit 1}}' $(REPORT)
endef

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# What builds and starts everything else, and the compilers for it.
.PHONY: yoke-dev
yoke-dev:
	@dev/toolchains.sh $(CACHE)/toolchains
	@echo "== yoke-dev, which does the rest"
	@$(CARGO) build --package yoke-dev || { echo "  try: fix what the compiler says or make crates.io reachable, then run \`make $(or $(MAKECMDGOALS),up)\` again" >&2; exit 1; }

.PHONY: up
up: yoke-dev ## Build what is missing and start the development stack, with a demo cluster on it
	@$(DEV) up

# A stack is stopped and asked by what started it: that needs no compiler, and a workspace that does not compile is no
# reason to be left with a running stack.
ifneq ($(wildcard .dev/bin/yoke-dev),)
down status worker host-node: STARTED := .dev/bin/yoke-dev
else
down status worker host-node: STARTED := $(DEV)
down status worker host-node: yoke-dev
endif

.PHONY: down
down: ## Stop the development stack and remove all of it but the build cache
	@$(STARTED) down

.PHONY: status
status: ## Show how every component is
	@$(STARTED) status

.PHONY: worker
worker: ## Add a worker to the demo cluster
	@$(STARTED) worker

.PHONY: host-node
host-node: ## Add a node to the host cluster
	@$(STARTED) host-node

# Programs that the stack and the tests of single crates need: nats-server, Envoy, helm and the others.
.PHONY: tools
tools: yoke-dev ## Build the programs of others into .dev/bin
	$(call timed,tools,$(DEV) up --until binaries)

.PHONY: images
images: tools ## Write the images of Yoke's processes to .dev/images, for a registry
	@$(DEV) images

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: lint
lint: tools ## Check the format, the lints and what no compiler checks
	$(call timed,format,$(CARGO) fmt --all --check)
	$(call timed,lints,RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/.cargo/clippy $(CARGO) check --workspace --all-targets --all-features)
	$(call timed,xtask,$(CARGO) xtask check)

# The tests of tenants run side by side, those that disturb the machine one after the other. A test that fails keeps none
# of the others from running: the count at the end is of all of them, and says by its status how they were.
.PHONY: test
test: lint deny ## Run every test, on the running stack too
	$(call timed,binaries,$(DEV) up --until workspace)
	@: > $(REPORT)
	$(call timed,unit and crate tests,YOKE_BIN=$(BIN) RUST_TEST_THREADS=$(WAITING) $(CARGO) test --workspace --exclude yoke-e2e --no-fail-fast 2>&1 | tee -a $(REPORT) || $(FAILED))
	$(call timed,stack,$(MAKE) --no-print-directory up)
	$(call timed,end-to-end tests of tenants,$(CARGO) test --package yoke-e2e --no-fail-fast --lib --bins --test tenants -- --test-threads=4 2>&1 | tee -a $(REPORT) || $(FAILED))
	$(call timed,end-to-end tests of the machine,$(CARGO) test --package yoke-e2e --no-fail-fast --test machine -- --test-threads=1 2>&1 | tee -a $(REPORT) || $(FAILED))
	@awk '/^test result:/ {p += $$4; f += $$6; i += $$8} /^== failed$$/ {bad = 1} \
		END {printf "== %d tests passed, %d failed, %d ignored\n", p, f, i; exit bad}' $(REPORT)

# Known vulnerabilities are in a repository that has to be fetched: `$(DENY)/bin/cargo-deny check advisories` does that.
.PHONY: deny
deny: yoke-dev ## Check the versions, licences and sources of the dependencies
	@[ -x $(DENY)/bin/cargo-deny ] || $(CARGO) install cargo-deny --quiet --locked --debug --version $(DENY_VERSION) --root $(DENY)
	$(call timed,dependencies,$(DENY)/bin/cargo-deny check bans licenses sources)

# The generated pages and the links are checked by `cargo xtask check`.
.PHONY: docs
docs: ## Build the book into target/book
	@dev/toolchains.sh $(CACHE)/toolchains
	@[ -x $(MDBOOK)/bin/mdbook ] || $(CARGO) install mdbook --quiet --locked --debug --no-default-features --features search --version $(MDBOOK_VERSION) --root $(MDBOOK)
	$(call timed,book,$(MDBOOK)/bin/mdbook build docs/book)

.PHONY: test-slow
test-slow: tools ## Run the tests that take long
	$(call timed,clean clone,e2e/clean-clone.sh)
	$(call timed,stack with two versions and metrics-server,YOKE_VERSIONS="$(SLOW_VERSIONS)" YOKE_METRICS_SERVER=true $(MAKE) --no-print-directory up)
	$(call timed,change of version,$(call some,$(CARGO) test --package yoke-e2e --features slow --test upgrade))
	$(call timed,kubectl top of the stack,$(call some,$(CARGO) test --package yoke-e2e --features slow --test top))
	$(call timed,kubectl top of real kubelets,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-worker --features slow --test worker -- top))
	$(call timed,kubelets of two versions,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-worker --features slow --test worker -- second_release))
	$(call timed,lost node of the host,$(call some,$(CARGO) test --package yoke-e2e --features slow --test node_loss -- --nocapture))
	$(call timed,drained node of the host,$(call some,$(CARGO) test --package yoke-e2e --features slow --test takeover -- --nocapture))
	$(call timed,silent worker,$(call some,$(CARGO) test --package yoke-e2e --features slow --test silence -- --nocapture))
	$(call timed,sleep and wake,$(call some,CYCLES=$(CYCLES) $(CARGO) test --package yoke-e2e --features slow --test cycles -- --nocapture))
	$(call timed,Kubernetes end-to-end tests,YOKE_BIN=$(BIN) e2e/conformance/run.sh .dev/demo.kubeconfig)
	$(call timed,foreign xDS client,$(call some,$(CARGO) test --package yoke-ingress-xds --features slow --test ingress -- foreign))
	$(call timed,hostile and damaged bytes,$(call some,FUZZ_TIMES=20 YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats -- hostile damage))
	$(call timed,random requests to two stores,$(call some,ORACLE_RUNS=$(ORACLE_RUNS) YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --test store -- oracle))
	$(call timed,replicated stores whose servers fail,$(call some,FUZZ_TIMES=2 YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --test store -- replicated))
	$(call timed,caches of Kubernetes,$(call some,YOKE_BIN=$(BIN) $(CARGO) test --package yoke-kine-nats --features slow --test store -- kubernetes --nocapture))
	$(call timed,Kubernetes storage tests,for time in $$(seq $(COUNT)); do YOKE_BIN=$(BIN) KINE_NATS=$(BIN)/kine-nats kine-nats/contract/storage-suite.sh || exit 1; done)
	$(call timed,etcd robustness tests,YOKE_BIN=$(BIN) KINE_NATS=$(BIN)/kine-nats kine-nats/contract/robustness.sh -runs $(ROBUSTNESS_RUNS))

# CHAOS_SECONDS and CHAOS_SEED say how long, and which faults.
.PHONY: chaos
chaos: up ## Kill, stop and cut off control planes and a node at random for ten minutes, and look what became of what was written
	$(call timed,second node of the host,$(BIN)/yoke-dev host-node --number 2)
	$(call timed,chaos,$(CARGO) test --package yoke-e2e --features slow --test chaos -- --nocapture)

# The binaries in release first: those of the stack are built for tests.
BENCH_PATH = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release:$(CURDIR)/.dev/peers:$(BIN):$$PATH

.PHONY: bench-store
bench-store: tools ## Measure the store beside etcd and Go kine (ARGS="--rounds 1" and others: see ARGS=--help)
	$(call timed,peers,CGO_ENABLED=0 GOTOOLCHAIN=local go build -C store-bench/peers -tags nats -ldflags "-s -w" -o $(CURDIR)/.dev/peers/ github.com/k3s-io/kine go.etcd.io/etcd/v3/tools/benchmark)
	$(call timed,stores,$(CARGO) build --release --package yoke-kine-nats --package yoke-store-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-store-bench stores $(ARGS))

.PHONY: bench-fleet
bench-fleet: tools ## Measure 1,372 kinds and a million objects (ARGS="--crds 20 --objects 2000" for a look)
	$(call timed,stores,$(CARGO) build --release --package yoke-kine-nats --package yoke-store-bench)
	$(call timed,measurements,PATH=$(BENCH_PATH) yoke-store-bench fleet $(ARGS))

.PHONY: bench-idle
bench-idle: tools ## Measure control planes that nobody uses, without each setting (ARGS=--help)
	$(call timed,peers,CGO_ENABLED=0 GOTOOLCHAIN=local go build -C store-bench/peers -tags nats -ldflags "-s -w" -o $(CURDIR)/.dev/peers/ github.com/k3s-io/kine)
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
	$(call timed,measurements,$(CARGO) run --quiet --package yoke-e2e --bin yoke-bench-density -- $(ARGS))

.PHONY: bench
bench: yoke-dev ## Measure one cluster and a hundred, on a stack built for speed
	$(call timed,stack,YOKE_PROFILE=release $(DEV) up)
	$(call timed,one cluster,$(CARGO) run --quiet --package yoke-e2e --bin yoke-bench)
	$(call timed,a hundred clusters,$(CARGO) run --quiet --package yoke-e2e --bin yoke-bench-density -- --clusters 100 --awake 5 --rest 30)
