# Towpath. `make demo` and `make test` do all set-up on a Debian 12 machine.
.PHONY: help setup build install uninstall dist demo test test-slow matrix posix check bench cores-rollback figures fuzz clean

help: ## This text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

setup: ## Install the Debian packages that everything below needs
	@scripts/setup all

build: ## Release binaries in target/release
	@scripts/setup build
	cargo build --release --workspace

install: ## Install what `make build` has built: PREFIX=/usr/local DESTDIR= SYSCONFDIR=/etc
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" SYSCONFDIR="$(SYSCONFDIR)" scripts/install

uninstall: ## Remove it again, by the same values; a configuration that was changed stays
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" SYSCONFDIR="$(SYSCONFDIR)" scripts/install --remove

dist: build ## Packages for Debian and RPM, a tarball, a container image and a list of what is in them, in target/dist: VERSION= OUT=
	@scripts/setup dist
	@VERSION="$(VERSION)" OUT="$(OUT)" scripts/dist

demo: ## Redis over Towpath beside Linux (root: over a veth; else: embedded)
	@scripts/demo

test: setup ## All tests; last line is the summary. CRATE=tcp for one crate's, NAME=rto for those with this in their name
	@scripts/test $(CRATE:%=--crate %) $(NAME)

test-slow: ## The long tests: many simulator seeds, a million packets through modules beside the kernel, long kill and soak runs
	@scripts/setup slow
	@scripts/test --slow

matrix: ## Real programs and their own test suites under Towpath and on Linux (root); NAMES="redis nginx" for some, STACKS="kernel uml" over others, WRITE=1 renews the table
	@scripts/setup matrix
	@cargo build --quiet --workspace
	@testing/system/matrix/run $(if $(WRITE),--write) $(STACKS:%=--stack %) $(NAMES)

posix: ## Compare sockets under Towpath with the kernel's, case by case (testing/system/posix)
	@scripts/setup build
	@cargo build --quiet --workspace
	@testing/system/posix/compare --bin "$${CARGO_TARGET_DIR:-target}/debug"

check: setup ## Format, lints, crate directions, licences, BPF object, docs
	@scripts/check

bench: setup ## All benchmarks beside Linux (root, about 23 minutes): target/bench/report.html, tables and JSON; RECORD=1 keeps the run and renews docs/performance.md
	@RECORD=$(RECORD) scripts/bench

cores-rollback: ## Kills `towpath cores enforce` at random moments; all settings are as they were afterwards (root; CYCLES=200 SEED=1)
	@scripts/setup build
	@cargo build --quiet --workspace
	@TOWPATH_BIN_DIR="$${CARGO_TARGET_DIR:-$$PWD/target}/debug" TOWPATH_ROLLBACK_CYCLES=$(or $(CYCLES),200) TOWPATH_ROLLBACK_SEED=$(or $(SEED),1) \
		cargo test --quiet -p towpath-system-tests --test cores_settings -- --nocapture whoever_is_killed_at_any_moment

figures: ## Draw docs/figures from bench/figures; MEASURE=1 measures anew first (root, minutes)
	@if [ -n "$(MEASURE)" ]; then scripts/setup build && scripts/measure-figures; fi
	@scripts/figures

fuzz: setup ## Fuzz every parser for 5 minutes each (FUZZ_SECONDS to change)
	@scripts/fuzz

clean: ## Remove build output
	cargo clean
