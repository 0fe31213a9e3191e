# Everything that is done with Engram, at the desk and in CI. `make help` lists it.

SHELL := /bin/sh
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
PIP_INSTALL := $(UV) pip install --quiet --python $(BIN)/python
# Compiled for one Python 3.11 up to the newest; no address of an index gets into a file.
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

RUST := $(shell find crates -name '*.rs' -o -name Cargo.toml -o -name '*.proto') Cargo.toml Cargo.lock
FACE := $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed)

# Maturin alone needs Python; the other crates are tested without one.
CRATES := --workspace --exclude engram-py --locked
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)

# At the desk the slow tests wait to be asked for (make test SLOW=1); CI runs them all. What needs PyTorch or
# TensorFlow has an environment of its own, so that everything else is seen to do without: `make frameworks`.
SLOW ?= $(filter true,$(CI))
CHOSEN := $(if $(SLOW),, and not slow)
PYTEST_ARGS ?=
FRAMEWORKS := .venv-frameworks
DEMO_ARGS ?=

# dm-reverb has wheels for this Python, and none for newer ones.
INTEROP_PYTHON ?= python3.11

##@ Build

.PHONY: help
help: ## List what make can do
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: .venv/.dev ## Make .venv with the pinned tools (a minute, mostly downloads)

.PHONY: build
build: .venv/.built ## Build the engine and install Engram into .venv (the default)

.PHONY: wheel
wheel: dist/.built ## Pack the one wheel for Python 3.11 and newer into dist/

.PHONY: prerequisites
prerequisites:
	@PYTHON="$(PYTHON)" scripts/check_prerequisites.sh

.venv/.uv: requirements/bootstrap.txt | prerequisites
	@echo "==> Making .venv and installing the pinned uv (seconds)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.uv
	@echo "==> Installing pinned tools and libraries into .venv (about a minute, mostly downloads)"
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

.venv/.docs: requirements/docs.txt .venv/.dev
	@echo "==> Installing the pinned documentation tools into .venv (seconds)"
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(FRAMEWORKS)/.made: requirements/frameworks.txt .venv/.uv
	@echo "==> Installing the pinned frameworks into $(FRAMEWORKS) (a minute or two, 8 GB)"
	@test -x $(FRAMEWORKS)/bin/python || $(UV) venv --quiet --python $(BIN)/python $(FRAMEWORKS)
	@$(UV) pip install --quiet --python $(FRAMEWORKS)/bin/python --require-hashes -r $<
	@touch $@

# Editable: changed Python needs no new build, changed Rust does.
.venv/.built: $(RUST) pyproject.toml .venv/.dev | prerequisites
	@echo "==> Building the engine (about 2 minutes the first time on 2 cores, seconds later)"
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin develop --release --uv
	@touch $@

# The same cargo build, already done, packed with the Python files.
dist/.built: .venv/.built $(FACE) README.md LICENSE
	@echo "==> Packing the wheel (seconds)"
	@rm -rf dist
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin build --release --out dist
	@touch $@
	@ls dist/*.whl

##@ Check

.PHONY: test
test: test-rust test-python ## Run the Rust and the Python tests

.PHONY: test-rust
test-rust: | prerequisites ## Run the Rust tests (about a minute to build the first time)
	@echo "==> Rust tests"
ifdef NEXTEST
	@cargo nextest run $(CRATES)
	@cargo test $(CRATES) --doc --quiet
else
	@cargo test $(CRATES)
endif

.PHONY: test-python
test-python: .venv/.built ## Run the Python tests, the demo's smoke test among them
	@echo "==> Python tests"
	@$(BIN)/python -m pytest -m "not frameworks and not interop$(CHOSEN)" $(PYTEST_ARGS)

.PHONY: frameworks
frameworks: $(FRAMEWORKS)/.made .venv/.built ## Run the tests that need PyTorch or TensorFlow
	@echo "==> Python tests with frameworks"
	@PYTHONPATH="$(CURDIR)/python" TF_CPP_MIN_LOG_LEVEL=3 \
		$(FRAMEWORKS)/bin/python -m pytest -m "frameworks$(CHOSEN)" $(PYTEST_ARGS)

.PHONY: test-wheel
test-wheel: dist/.built ## Try the wheel in bare environments of 3.11, 3.12 and 3.13
	@echo "==> The wheel in bare environments (seconds each)"
	@scripts/test_wheel.sh $(UV) dist/*.whl

.venv-interop/.built: requirements/interop.txt .venv/.uv
	@echo "==> Installing the real dm-reverb into .venv-interop (minutes, mostly downloads)"
	@test -x .venv-interop/bin/python || $(INTEROP_PYTHON) -m venv .venv-interop
	@$(UV) pip install --quiet --python .venv-interop/bin/python --require-hashes -r $<
	@touch $@

.PHONY: test-interop
test-interop: .venv/.built .venv-interop/.built ## Run dm-reverb's own client against our server and its own
	@echo "==> The same programs at both servers"
	@REVERB_PYTHON=.venv-interop/bin/python $(BIN)/python -m pytest -m interop

.PHONY: lint
lint: .venv/.built ## Check formatting, lints, types, stubs and file sizes
	@echo "==> Lint: Rust (about a minute the first time)"
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	@echo "==> Lint: Python"
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy
	@test ! -e python/engram/_engram.pyi || $(BIN)/stubtest engram._engram
	@$(BIN)/python scripts/check_sizes.py

.PHONY: words
words: ## List refused words, with their replacements
	@$(PYTHON) scripts/check_words.py

.PHONY: fmt
fmt: .venv/.dev ## Format Rust and Python
	@cargo fmt --all
	@$(BIN)/ruff check --quiet --select I --fix
	@$(BIN)/ruff format --quiet

##@ Use

.PHONY: demo
demo: .venv/.built ## Train CartPole from a replay table, live (DEMO_ARGS="--seed 1")
	@$(BIN)/engram demo $(DEMO_ARGS)

.PHONY: bench
bench: .venv/.built ## Measure against the peers and against the machine (long)
	@$(BIN)/python -m benchmarks

.PHONY: docs
docs: .venv/.docs ## Build the documentation into site/, strictly
	@$(BIN)/zensical build --strict --clean

##@ Keep

.PHONY: lock
lock: .venv/.uv ## Pin requirements/*.in anew (LOCK_ARGS=--upgrade for newer versions)
	@for name in bootstrap dev docs frameworks interop; do \
		$(LOCK) $(LOCK_ARGS) requirements/$$name.in -o requirements/$$name.txt || exit 1; done

.PHONY: clean
clean: ## Remove everything that make made
	@rm -rf .venv $(FRAMEWORKS) .venv-interop target dist build site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -f python/engram/*.so
