# `make` shows what there is. Everything runs in .venv, which the first target that needs it sets up.

PYTHON ?= python3
PYTEST_ARGS ?=
BIN := .venv/bin
BENCHES := bench/compile.py bench/import.py bench/local_overhead.py bench/transfer.py

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-cluster cluster-up cluster-down lint format golden bench bench-cluster lock dist clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed ## Set up .venv from requirements.lock, and kr_kfp in it as an editable install

demo: .venv/.installed ## Train on real digits: 4 hosts x 4 devices on this machine
	@$(BIN)/python -m kr_kfp_pipelines.demo

test: lint ## Run all checks and tests (PYTEST_ARGS="-k name" to choose)
	$(if $(PYTEST_ARGS),$(BIN)/python -m pytest $(PYTEST_ARGS),$(BIN)/python -m tests.tiers)

test-cluster: .venv/.installed ## Run the tests on a real cluster on this machine: Linux, root and Go; ~7 min to build once
	$(BIN)/python -m tests.cluster test $(PYTEST_ARGS)

cluster-up: .venv/.installed ## Start that cluster and leave it running; prints how to reach it
	@$(BIN)/python -m tests.cluster up

cluster-down: .venv/.installed ## Stop it and remove every trace
	@$(BIN)/python -m tests.cluster down

lint: .venv/.installed ## Check style, types, layers and documents
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/unit/test_docs.py

format: .venv/.installed ## Put the code into form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

golden: .venv/.installed ## Write the committed compiled files anew; look at `git diff` afterwards
	KR_KFP_REGENERATE=1 $(BIN)/python -m pytest -q tests/golden

bench: .venv/.installed ## Measure compile and import time, the local cluster and transfers
	@for bench in $(BENCHES); do echo "$$bench"; $(BIN)/python $$bench || exit 1; done

bench-cluster: .venv/.installed ## Compare the launcher with kubectl and the predecessor on a real cluster: root, ~15 min
	$(BIN)/python bench/cluster.py

dist: .venv/.installed ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build --outdir dist .

lock: build/lock/bin/uv ## Renew requirements.lock and images/*.lock with the newest releases that are allowed
	build/lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--output-file requirements.lock --quiet
	for image in build launcher train; do \
		build/lock/bin/uv pip compile images/$$image.in --constraint requirements.lock --universal \
			--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
			--custom-compile-command "make lock" --output-file images/$$image.lock --quiet || exit 1; \
	done

clean: ## Remove what was built and set up here
	rm -rf .venv .demo build dist local_outputs *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- set-up -----------------------------------------------------------------------------------------------------------

# A stamp for each half: a change of pyproject.toml alone does not install the requirements again.
.venv/.installed: pyproject.toml .venv/.locked
	@echo "Installing kr_kfp into .venv"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.locked: requirements.lock .venv/bin/python
	@# A set-up that was cut short may have left a .venv without pip.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv && $(PYTHON) -m venv .venv; }
	@echo "Installing requirements.lock into .venv (about a minute, 1.1 GB)"
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	@touch $@

.venv/bin/python:
	@PYTHON="$(PYTHON)" sh .ci/python
	@rm -rf .venv
	@$(PYTHON) -m venv .venv

build/lock/bin/uv:
	@PYTHON="$(PYTHON)" sh .ci/python
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet 'uv>=0.9,<1'
