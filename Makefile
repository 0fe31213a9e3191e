# All tasks of developing Engram, locally and in CI. `make help` lists them.

SHELL := /bin/sh
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
PIP_INSTALL := $(UV) pip install --quiet --python $(BIN)/python
# Pins for Python 3.11 and newer; no address of a package index is written to the files.
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

RUST := $(shell find crates -name '*.rs' -o -name Cargo.toml -o -name '*.proto') Cargo.toml Cargo.lock
PYTHON_FILES := $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed)

# Only engram-py needs Python: maturin builds it. The other crates are tested without Python.
CRATES := --workspace --exclude engram-py --locked
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)

# Slow tests run in CI and with `make test SLOW=1`. Tests that need PyTorch or TensorFlow run in an environment of their
# own (`make frameworks`), so that all others are tested without them.
SLOW ?= $(filter true,$(CI))
MARKERS := $(if $(SLOW),, and not slow)
PYTEST_ARGS ?=
# Three processes for two processors, because many tests wait; one without tests left takes over some of another one.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)
PARALLEL := -n $(PROCESSES) --dist worksteal
FRAMEWORKS := .venv-frameworks
OUTSIDE := .venv-outside
RAY := .venv-ray
DEMO_ARGS ?=

# The newest Python that dm-reverb and TensorFlow 2.15 have wheels for.
INTEROP_PYTHON ?= python3.11

##@ Build

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: .venv/.dev ## Create .venv with the pinned tools (a minute, mostly downloads)

.PHONY: build
build: .venv/.built ## Build the engine and install Engram into .venv (the default)

.PHONY: wheel
wheel: dist/.built ## Build the wheel for Python 3.11 and newer into dist/

.PHONY: prerequisites
prerequisites:
	@PYTHON="$(PYTHON)" scripts/check_prerequisites.sh

.venv/.uv: requirements/bootstrap.txt | prerequisites
	@echo "==> Creating .venv and installing the pinned uv (seconds)"
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

$(RAY)/.made: requirements/ray.txt .venv/.uv
	@echo "==> Installing Ray into $(RAY) (a minute, mostly downloads)"
	@test -x $(RAY)/bin/python || $(UV) venv --quiet --python $(BIN)/python $(RAY)
	@$(UV) pip install --quiet --python $(RAY)/bin/python --require-hashes -r $<
	@touch $@

# Without dependencies: they are pinned, except those that outside.overrides removes.
$(OUTSIDE)/.made: requirements/outside.txt .venv/.uv
	@echo "==> Installing TensorFlow 2.15, Acme and TF-Agents into $(OUTSIDE) (a minute or two, 2 GB)"
	@test -x $(OUTSIDE)/bin/python || $(INTEROP_PYTHON) -m venv $(OUTSIDE)
	@$(UV) pip install --quiet --python $(OUTSIDE)/bin/python --require-hashes --no-deps -r $<
	@touch $@

# An editable install: only changes of Rust need a new build.
.venv/.built: $(RUST) pyproject.toml .venv/.dev | prerequisites
	@echo "==> Building the engine (about 5 minutes the first time on 2 cores)"
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin develop --release --uv
	@touch $@

# Packs the existing cargo build with the Python files.
dist/.built: .venv/.built $(PYTHON_FILES) README.md LICENSE
	@echo "==> Building the wheel (seconds)"
	@rm -rf dist
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin build --release --out dist
	@touch $@
	@ls dist/*.whl

##@ Check

.PHONY: test
test: test-rust test-python ## Run the Rust and the Python tests

.PHONY: test-rust
test-rust: | prerequisites ## Run the Rust tests (a few minutes to build the first time)
	@echo "==> Rust tests"
ifdef NEXTEST
	@cargo nextest run $(CRATES)
	@cargo test $(CRATES) --doc --quiet
else
	@cargo test $(CRATES)
endif

.PHONY: test-python
test-python: .venv/.built ## Run the Python tests, including the demo's smoke test
	@echo "==> Python tests"
	@$(BIN)/python -m pytest -m "not frameworks and not interop and not page and not ray$(MARKERS)" $(PARALLEL) $(PYTEST_ARGS)

.PHONY: frameworks
frameworks: $(FRAMEWORKS)/.made $(OUTSIDE)/.made .venv/.built ## Run the tests that need PyTorch or TensorFlow
	@echo "==> Python tests with frameworks"
	@PYTHONPATH="$(CURDIR)/python" TF_CPP_MIN_LOG_LEVEL=3 \
		$(FRAMEWORKS)/bin/python -m pytest -m "frameworks$(MARKERS)" $(PARALLEL) $(PYTEST_ARGS)
	@echo "==> Tests of datasets with the oldest TensorFlow, and of FTW's losses with rlax"
	@PYTHONPATH="$(CURDIR)/python" TF_CPP_MIN_LOG_LEVEL=3 \
		$(OUTSIDE)/bin/python -m pytest tests/compat tests/data tests/agents/test_same_as_rlax.py \
		-m "frameworks and not torch and not slow" $(PARALLEL) $(PYTEST_ARGS)

# One after the other: each has a Ray cluster with several nodes.
.PHONY: test-ray
test-ray: $(RAY)/.made .venv/.built ## Test engram.distributed on a local Ray cluster (ENGRAM_RAY_KILLS=50, ENGRAM_RAY_SEEDS=3 for more)
	@echo "==> Python tests with Ray"
	@PYTHONPATH="$(CURDIR)/python" JAX_PLATFORMS=cpu RAY_USAGE_STATS_ENABLED=0 \
		$(RAY)/bin/python -m pytest -m "ray$(MARKERS)" $(PYTEST_ARGS)

# The tests of Acme and TF-Agents that use Reverb, as their packages contain them. Some of TF-Agents' start processes.
OUTSIDE_TESTS := acme/adders/reverb/episode_test.py acme/adders/reverb/sequence_test.py \
	acme/adders/reverb/transition_test.py \
	tf_agents/replay_buffers/reverb_replay_buffer_test.py tf_agents/replay_buffers/reverb_utils_test.py

.PHONY: test-outside
test-outside: $(OUTSIDE)/.made .venv/.built ## Run the replay tests of Acme and TF-Agents on engram.compat.reverb
	@echo "==> Tests of Acme and TF-Agents"
	@cd $(OUTSIDE)/lib/python3.*/site-packages && \
		PYTHONPATH="$(CURDIR)/python:$(CURDIR)/tests/outside" TF_CPP_MIN_LOG_LEVEL=3 \
		$(CURDIR)/$(OUTSIDE)/bin/python -m pytest -c $(CURDIR)/tests/outside/pytest.ini -p no:cacheprovider \
		$(PYTEST_ARGS) $(OUTSIDE_TESTS)

.PHONY: test-wheel
test-wheel: dist/.built ## Test the wheel in bare environments of Python 3.11, 3.12 and 3.13
	@echo "==> Testing the wheel in bare environments (seconds each)"
	@scripts/test_wheel.sh $(UV) dist/*.whl

.PHONY: test-page
test-page: .venv/.built ## Test the dashboard in Chromium (Debian's package `chromium`; CHROMIUM=PATH for another one)
	@echo "==> Tests of the dashboard in a browser"
	@$(BIN)/python -m pytest -m page $(PYTEST_ARGS)

.PHONY: screenshots
screenshots: .venv/.built ## Make the pictures of the dashboard for the documentation
	@SCREENSHOTS=docs/images/dashboard $(BIN)/python -m pytest -m page -k "overview or test_table or images or stays_open" -q

.venv-interop/.built: requirements/interop.txt .venv/.uv
	@echo "==> Installing dm-reverb into .venv-interop (minutes, mostly downloads)"
	@test -x .venv-interop/bin/python || $(INTEROP_PYTHON) -m venv .venv-interop
	@$(UV) pip install --quiet --python .venv-interop/bin/python --require-hashes -r $<
	@touch $@

.PHONY: test-interop
test-interop: .venv/.built .venv-interop/.built ## Test dm-reverb's client with Engram's server and with its own
	@echo "==> dm-reverb's client with both servers"
	@REVERB_PYTHON=.venv-interop/bin/python $(BIN)/python -m pytest -m interop

.PHONY: lint
lint: lint-sources .venv/.built ## Check all that lint-sources checks, and the stubs
	@echo "==> Lint: stubs of the engine"
	@$(BIN)/stubtest engram._engram

.PHONY: lint-sources
lint-sources: .venv/.dev ## Check formatting, lints, types, file sizes and words, without a release build
	@echo "==> Lint: Rust (a few minutes the first time)"
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	@cargo clippy --package engram-rpc --no-default-features --locked --quiet -- -D warnings
	@echo "==> Lint: Python"
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy
	@$(BIN)/python scripts/check_sizes.py
	@$(BIN)/python scripts/check_words.py

.PHONY: fmt
fmt: .venv/.dev ## Format Rust and Python
	@cargo fmt --all
	@$(BIN)/ruff check --quiet --select I --fix
	@$(BIN)/ruff format --quiet

##@ Use

.PHONY: demo
demo: .venv/.built ## Train an agent on CartPole, with a live display (DEMO_ARGS="--seed 1")
	@$(BIN)/engram demo $(DEMO_ARGS)

.PHONY: bench
bench: .venv/.built ## Run the benchmarks, also of the peers (an hour or more)
	@$(BIN)/python -m benchmarks

.PHONY: docs
docs: .venv/.docs ## Build the documentation into site/; warnings are errors
	@$(BIN)/zensical build --strict --clean

##@ Maintain

.PHONY: lock
lock: .venv/.uv ## Pin requirements/*.in again (LOCK_ARGS=--upgrade for newer versions)
	@for name in bootstrap dev docs frameworks interop ray; do \
		$(LOCK) $(LOCK_ARGS) requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	@$(LOCK) $(LOCK_ARGS) --override requirements/outside.overrides requirements/outside.in -o requirements/outside.txt

.PHONY: clean
clean: ## Remove everything that make created
	@rm -rf .venv $(FRAMEWORKS) $(OUTSIDE) $(RAY) .venv-interop target dist build site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -f python/engram/*.so
