# Needs Python 3.11 or newer, git and make; everything else goes into .venv.

VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -qq
UV := 0.13.7
PIP_AUDIT := 2.10.1
SUITE := tests/js/conformance
JS := tests/js/node_modules/.package-lock.json

# Where this is set, every process that a test starts would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that really runs, is new enough and can make a virtual environment.
PYTHON ?= $(shell for py in $(foreach minor,11 12 13 14 15 16 17 18 19 20,python3.$(minor)) python3; do \
	$$py -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v $$py && break; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check format lint types architecture bench bench-peers load soak sim chaos conformance mutants docs \
	diagrams golden dist sync lock audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## see an agent survive being killed (options: ARGS="…")
	@$(BIN)/outlast demo $(ARGS)

test: $(VENV)/.dev $(JS) ## run the tests (options: ARGS="…")
	@$(BIN)/pytest -n 3 $(ARGS) $(if $(ARGS),,--ignore tests/chaos)
	@$(if $(ARGS),true,$(BIN)/pytest tests/chaos)  # by itself: its workers need the machine

check: lint types test ## everything that CI does

format: $(VENV)/.dev ## rewrite the code in the project's format
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

lint: $(VENV)/.dev ## check format and lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(VENV)/.dev ## check types strictly
	@$(BIN)/mypy

architecture: $(VENV)/.dev ## check that imports go one way (as the tests do, too)
	@$(BIN)/pytest -q tests/unit/test_architecture.py

bench: $(VENV)/.dev ## measure against the floor on SQLite and PostgreSQL (options: ARGS="--help")
	@$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(VENV)/.dev ## the same steps in DBOS, Absurd and Restate, in an environment of their own under build/
	@test -x build/peers/venv/bin/python || $(BIN)/python -m venv build/peers/venv
	@build/peers/venv/bin/pip --disable-pip-version-check -qq install dbos absurd-sdk absurdctl restate-sdk hypercorn
	@$(BIN)/npm install --prefix build/peers --no-audit --no-fund --loglevel=error @restatedev/restate-server \
	|| echo "Restate's server cannot be had here, and is left out."
	@OUTLAST_PEERS=$(CURDIR)/build/peers $(BIN)/python -m benchmarks peer-workflows $(ARGS)

load: $(VENV)/.dev ## how late readers are: a thousand, and a few beside strangers (options: ARGS="--help")
	@$(BIN)/python -m benchmarks.load $(ARGS)

soak: $(VENV)/.dev ## a quarter of an hour of turns on each database: what grows? (options: ARGS="--minutes 1")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

sim: $(VENV)/.dev ## simulate many workers with faults (SEEDS=1000, or SEED=7 with its trace)
	@$(BIN)/python -m outlast.testing.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) $(ARGS)

chaos: $(VENV)/.dev ## kill workers and shake databases for minutes (options: ARGS="--help")
	@PYTHONPATH=tests:tests/support $(BIN)/python -m chaos $(ARGS)
	@$(if $(ARGS),true,OUTLAST_EVERY_KILL=1 $(BIN)/pytest -q \
		$(addprefix tests/crash/test_,durable_loop.py workflow_kill.py crash_bounded.py))

docs: $(VENV)/.dev $(JS) ## build the documentation site into site/ (or look at it: ARGS=serve)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict --quiet)

conformance: $(VENV)/.dev ## the Durable Streams suite's reading tests on runs (options: ARGS="--only SSE")
	@test -d $(SUITE)/node_modules || NODE_OPTIONS="$$NODE_OPTIONS --use-system-ca" $(BIN)/npm ci --prefix $(SUITE) \
		--ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
	@PYTHONPATH=tests:tests/support:tests/e2e $(BIN)/python -m conformance $(ARGS)

mutants: $(VENV)/.dev ## change the code in small ways: which tests notice? (options: ARGS="--minutes 10 --seed 7")
	@PYTHONPATH=tests:tests/support $(BIN)/python -m mutants $(ARGS)

diagrams: $(VENV)/.dev ## draw the diagrams of the documentation from the code
	@PYTHONPATH=tests:tests/support $(BIN)/python tests/support/diagrams.py

sync: $(VENV)/.dev ## write the classes of outlast.sync from the async ones
	@$(BIN)/python tests/support/sync_classes.py

golden: $(VENV)/.dev ## make the golden databases of this version, before it is released
	@PYTHONPATH=tests/migrations:tests/support $(BIN)/python tests/migrations/make_golden.py

dist: $(VENV)/.dev ## build the sdist and the wheel into dist/
	@$(BIN)/python -m hatchling build

lock: ## resolve the lock files again (newest versions: ARGS=--upgrade)
	@$(require-python)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && "$(PYTHON)" -m venv "$$tmp" && \
	"$$tmp/bin/pip" --disable-pip-version-check -qq install uv==$(UV) && \
	compile() { UV_CUSTOM_COMPILE_COMMAND="make lock" "$$tmp/bin/uv" pip compile --quiet \
		--universal --python-version 3.11 --generate-hashes --group build $(ARGS) "$$@" pyproject.toml; } && \
	compile --extra dev -o requirements-dev.lock && \
	compile --constraint requirements-dev.lock -o requirements.lock

audit: ## ask an advisory service about the locked versions (no part of `check`)
	@$(require-python)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && "$(PYTHON)" -m venv "$$tmp" && \
	"$$tmp/bin/pip" --disable-pip-version-check -qq install pip-audit==$(PIP_AUDIT) && \
	"$$tmp/bin/python" .ci/audit.py

clean: ## remove what the other targets made
	rm -rf $(VENV) tests/js/node_modules $(SUITE)/node_modules build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

define require-python
test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found (with venv and ensurepip)." \
	"Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
endef

$(BIN)/python:
	@$(require-python)
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.runtime: requirements.lock
$(VENV)/.dev: requirements-dev.lock
$(VENV)/.runtime $(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(BIN)/python .ci/install.py $(filter %.lock,$^)
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(JS): tests/js/package-lock.json | $(VENV)/.dev
	@echo "Installing what tests in JavaScript need …"
	@NODE_OPTIONS="$$NODE_OPTIONS --use-system-ca" $(BIN)/npm ci --prefix tests/js --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
	@touch $@
