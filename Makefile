# All tasks of developing Engram, locally and in CI. `make help` lists them.

SHELL := /bin/sh
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Images of containers often set it; then each of the many processes of the tests would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
PIP_INSTALL := $(UV) pip install --quiet --python $(BIN)/python
# Pins for Python 3.11 and newer; no address of a package index is written to the files.
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

RUST := $(shell find crates -name '*.rs' -o -name '*.bin' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_FILES := $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed)

# engram-py has no Rust tests and is not built for them; without it here, cargo would compile other features of dependencies
# than `make` has. The generator of the protocols' code has a test of its own: make check-generated.
CRATES := --workspace --exclude engram-protogen --tests --locked
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)

# `make test-all` sets ALL: slow tests, more random examples, and an error where something that a test needs is missing.
ALL :=
export ENGRAM_TEST_ALL := $(ALL)
MARKERS := $(if $(ALL),, and not slow)
# Some of the slow tests take minutes on a busy machine.
TIMEOUT := $(if $(ALL),--timeout=600)
PYTEST_ARGS ?=
# The Python of the tests, and the build that they need: `make test-all` takes the release build.
TEST_PYTHON := $(BIN)/python
ENGINE := .venv/.built
# What the tests need in .venv: nothing if they run in another environment.
TEST_VENV := .venv/.test
DEV_VENV := .venv/.dev
# Three processes for two processors, because many tests wait; one without tests left takes over some of another one.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)
PARALLEL := -n $(PROCESSES) --dist worksteal $(TIMEOUT)
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
		/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: .venv/.dev ## Install all pinned tools and libraries into .venv, also those that `make` does not need

.PHONY: build
build: .venv/.built ## Build the engine and install Engram into .venv (the default)

.PHONY: release
release: .venv/.release ## The same with the optimizations of wheels, for benchmarks (minutes)

.PHONY: wheel
wheel: dist/.release ## Build the wheel for Python 3.11 and newer into dist/

.PHONY: prerequisites
prerequisites:
	@PYTHON="$(PYTHON)" scripts/check_prerequisites.sh

.venv/.uv: requirements/bootstrap.txt | prerequisites
	@echo "==> Creating .venv and installing the pinned uv (seconds)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/.main: requirements/main.txt .venv/.uv
	@echo "==> Installing what Engram and its demo need into .venv (seconds, mostly downloads)"
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

.venv/.test: requirements/test.txt .venv/.main
	@echo "==> Installing what the tests need into .venv (seconds, mostly downloads)"
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.test
	@echo "==> Installing the linters and all extras into .venv (seconds, mostly downloads)"
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

# Editable installs: only changes of Rust need a new build. There is one at a time.
.venv/.built: $(RUST) pyproject.toml .venv/.main | prerequisites
	@echo "==> Building the engine (two minutes the first time on 2 cores)"
	@rm -f .venv/.release
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin develop --uv
	@touch $@

.venv/.release: $(RUST) pyproject.toml .venv/.main | prerequisites
	@echo "==> Building the engine as for a release (minutes)"
	@rm -f .venv/.built
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin develop --release --uv
	@touch $@

PACKAGED := $(RUST) pyproject.toml $(PYTHON_FILES) README.md LICENSE

dist/.release: $(PACKAGED) .venv/.main | prerequisites
	@echo "==> Building the wheel (minutes; seconds after make release)"
	@rm -rf dist
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin build --release --out dist
	@touch $@
	@ls dist/*.whl

# The wheel with what `make` has built, for the test of its content.
build/wheel/.dev: $(PACKAGED) .venv/.built
	@rm -rf build/wheel
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/maturin build --out build/wheel
	@touch $@

# The environment in which `make test-all` tests the wheel.
.venv-wheel/.made: requirements/dev.txt dist/.release .venv/.uv
	@test -x .venv-wheel/bin/python || $(UV) venv --quiet --python $(BIN)/python .venv-wheel
	@$(UV) pip install --quiet --python .venv-wheel/bin/python --require-hashes -r $<
	@$(UV) pip install --quiet --python .venv-wheel/bin/python --no-deps --reinstall dist/*.whl
	@touch $@

##@ Check

PYTEST = $(TEST_PYTHON) -m pytest
# Tests that need what only other targets install.
ELSEWHERE := not frameworks and not interop and not page and not ray
AGENTS := tests/agents tests/compat/ftw tests/examples $(addprefix tests/cli/test_, demo.py train.py training_progress.py)

.PHONY: test
test: test-rust test-python ## Test what a change most often breaks (minutes)

.PHONY: test-rust
test-rust: | prerequisites ## Run the Rust tests
	@echo "==> Rust tests"
ifdef NEXTEST
	@cargo nextest run $(CRATES) --test-threads $(PROCESSES)
else
	@cargo test $(CRATES)
endif

.PHONY: test-python
test-python: $(TEST_VENV) $(ENGINE) ## Run the Python tests, except those of agents
	@echo "==> Python tests"
	@$(PYTEST) -m "$(ELSEWHERE)$(MARKERS)" $(addprefix --ignore=, $(AGENTS)) $(PARALLEL) $(PYTEST_ARGS)

.PHONY: test-agents
test-agents: $(DEV_VENV) $(ENGINE) ## Run the tests of agents, of their training and of engram.compat.ftw
	@echo "==> Tests of agents"
	@$(PYTEST) -m "$(ELSEWHERE)$(MARKERS)" $(AGENTS) $(PARALLEL) $(PYTEST_ARGS)

# `make test-all` in parts, which other machines may run at the same time.
WITH_RELEASE := ALL=1 ENGINE=.venv/.release
WITH_WHEEL := ALL=1 ENGINE=.venv-wheel/.made TEST_PYTHON=.venv-wheel/bin/python TEST_VENV= DEV_VENV=

.PHONY: test-all all-engine all-python all-agents all-frameworks all-systems
test-all: ## Run all tests (an hour), those of test-python, test-agents and test-page with the wheel
	@for part in engine python agents frameworks systems; do $(MAKE) all-$$part || exit 1; done
all-engine:
	@$(MAKE) $(WITH_RELEASE) test-rust lint docs
all-python:
	@$(MAKE) $(WITH_WHEEL) test-wheel test-python test-page
all-agents:
	@$(MAKE) $(WITH_WHEEL) test-agents
all-frameworks:
	@$(MAKE) $(WITH_RELEASE) frameworks test-outside
all-systems:
	@$(MAKE) $(WITH_RELEASE) test-interop test-ray

.PHONY: frameworks
frameworks: $(FRAMEWORKS)/.made $(if $(ALL),$(OUTSIDE)/.made) $(ENGINE) ## Run the tests that need PyTorch or TensorFlow
	@echo "==> Python tests with frameworks"
	@PYTHONPATH="$(CURDIR)/python" TF_CPP_MIN_LOG_LEVEL=3 \
		$(FRAMEWORKS)/bin/python -m pytest -m "frameworks$(MARKERS)" $(PARALLEL) $(PYTEST_ARGS)
ifneq ($(ALL),)
	@echo "==> Tests of datasets with the oldest TensorFlow, and of FTW's losses with rlax"
	@PYTHONPATH="$(CURDIR)/python" TF_CPP_MIN_LOG_LEVEL=3 ENGRAM_TEST_ALL=$(ALL:1=outside) \
		$(OUTSIDE)/bin/python -m pytest tests/compat tests/data tests/agents/test_same_as_rlax.py \
		-m "frameworks and not torch" $(PARALLEL) $(PYTEST_ARGS)
endif

# One after the other: each has a Ray cluster with several nodes.
.PHONY: test-ray
test-ray: $(RAY)/.made $(ENGINE) ## Test engram.distributed on a local Ray cluster (ENGRAM_RAY_KILLS=50, ENGRAM_RAY_SEEDS=3 for more)
	@echo "==> Python tests with Ray"
	@PYTHONPATH="$(CURDIR)/python" JAX_PLATFORMS=cpu RAY_USAGE_STATS_ENABLED=0 \
		$(RAY)/bin/python -m pytest -m "ray$(MARKERS)" $(TIMEOUT) $(PYTEST_ARGS)

# The tests of Acme and TF-Agents that use Reverb, as their packages contain them. Some of TF-Agents' start processes.
OUTSIDE_TESTS := acme/adders/reverb/episode_test.py acme/adders/reverb/sequence_test.py \
	acme/adders/reverb/transition_test.py \
	acme/agents/tf/actors_test.py \
	tf_agents/experimental/distributed/reverb_variable_container_test.py \
	tf_agents/replay_buffers/reverb_replay_buffer_test.py tf_agents/replay_buffers/reverb_utils_test.py \
	tf_agents/train/utils/train_utils_test.py

.PHONY: test-outside
test-outside: $(OUTSIDE)/.made $(ENGINE) ## Run the replay tests of Acme and TF-Agents on engram.compat.reverb
	@echo "==> Tests of Acme and TF-Agents"
	@cd $(OUTSIDE)/lib/python3.*/site-packages && \
		PYTHONPATH="$(CURDIR)/python:$(CURDIR)/tests/outside" TF_CPP_MIN_LOG_LEVEL=3 \
		$(CURDIR)/$(OUTSIDE)/bin/python -m pytest -c $(CURDIR)/tests/outside/pytest.ini -p no:cacheprovider \
		$(PYTEST_ARGS) $(OUTSIDE_TESTS)

.PHONY: test-wheel
test-wheel: $(if $(ALL),dist/.release,build/wheel/.dev) ## Test the wheel in bare environments of Python 3.11, 3.12 and 3.13
	@echo "==> Testing the wheel in bare environments (seconds each)"
	@scripts/test_wheel.sh $(UV) $(if $(ALL),dist,build/wheel)/*.whl
	@echo "==> Checking that the source distribution has what Cargo.lock names"
	@rm -rf build/sdist && mkdir -p build
	@$(BIN)/maturin sdist --out build/sdist 2> build/sdist.log || { cat build/sdist.log; exit 1; }
	@tar -xzf build/sdist/*.tar.gz -C build/sdist
	@cargo metadata --locked --format-version 1 --manifest-path build/sdist/engram_replay-*/Cargo.toml > build/sdist/metadata.json

.PHONY: test-page
test-page: $(DEV_VENV) $(ENGINE) ## Test the dashboard in Chromium (Debian's package `chromium`; CHROMIUM=PATH for another one)
	@echo "==> Tests of the dashboard in a browser"
	@$(PYTEST) -m "page$(MARKERS)" $(TIMEOUT) $(PYTEST_ARGS)

.PHONY: screenshots
screenshots: .venv/.dev .venv/.built ## Make the pictures of the dashboard for the documentation
	@SCREENSHOTS=docs/images/dashboard $(BIN)/python -m pytest -m page -k "overview or test_table or images or stays_open" -q

.venv-interop/.built: requirements/interop.txt .venv/.uv
	@echo "==> Installing dm-reverb into .venv-interop (minutes, mostly downloads)"
	@test -x .venv-interop/bin/python || $(INTEROP_PYTHON) -m venv .venv-interop
	@$(UV) pip install --quiet --python .venv-interop/bin/python --require-hashes -r $<
	@touch $@

.PHONY: test-interop
test-interop: .venv/.dev $(ENGINE) .venv-interop/.built ## Test dm-reverb's client with Engram's server and with its own
	@echo "==> dm-reverb's client with both servers"
	@REVERB_PYTHON=.venv-interop/bin/python $(BIN)/python -m pytest -m "interop$(MARKERS)" $(PYTEST_ARGS)

.PHONY: lint
lint: lint-sources $(ENGINE) ## Check all that lint-sources checks, and the stubs
	@echo "==> Lint: stubs of the engine"
	@$(BIN)/stubtest engram._engram

.PHONY: lint-sources
lint-sources: .venv/.dev check-generated ## Check formatting, lints, types, file sizes and words, without building the engine
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
bench: .venv/.dev .venv/.release $(FRAMEWORKS)/.made $(OUTSIDE)/.made ## Run the benchmarks, also of the peers (an hour or more)
	@$(BIN)/python -m benchmarks

.PHONY: docs
docs: .venv/.docs ## Build the documentation into site/; warnings are errors
	@$(BIN)/zensical build --strict --clean

##@ Maintain

.PHONY: generate
generate: | prerequisites ## Generate the Rust code of the protocols' messages again, after a change of a .proto file
	@cargo run --quiet --locked --profile generate --package engram-protogen

.PHONY: check-generated
check-generated: | prerequisites ## Check that the generated code is that of the .proto files
	@cargo test --quiet --locked --profile generate --package engram-protogen

.PHONY: lock
lock: .venv/.uv ## Pin requirements/*.in again (LOCK_ARGS=--upgrade for newer versions)
	@for name in bootstrap dev docs frameworks interop ray; do \
		$(LOCK) $(LOCK_ARGS) requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	@for name in test main; do \
		$(LOCK) --constraint requirements/dev.txt requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	@$(LOCK) $(LOCK_ARGS) --override requirements/outside.overrides requirements/outside.in -o requirements/outside.txt

.PHONY: clean
clean: ## Remove everything that make created
	@rm -rf .venv $(FRAMEWORKS) $(OUTSIDE) $(RAY) .venv-interop .venv-wheel target dist build site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -f python/engram/*.so
