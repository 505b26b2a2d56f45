# Everything a contributor runs. Needs python3 (3.10 or newer), a C++20 compiler and make; the rest is installed into .venv
# with pip. A stamp is written only after its step has succeeded, and lies in the folder that it speaks of, so removing
# that folder is enough to start anew.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JOBS ?= $(shell nproc)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tests and examples find horovodrun, cmake and ninja here.
export PATH := $(CURDIR)/$(BIN):$(PATH)

NATIVE_SOURCES := $(shell find native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
SOURCES := CMakeLists.txt pyproject.toml README.md LICENSE $(NATIVE_SOURCES) \
           $(shell find src -name '*.py' -o -name '*.pyi' -o -name py.typed)
SANITIZED := address,undefined thread

.PHONY: help demo test test-native test-sanitized test-python lint bench docs dev wheel wheel-test clean
.DEFAULT_GOAL := help

help: ## print the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1@\2/p' Makefile | column -t -s @

demo: $(VENV)/installed.stamp ## train on two ranks of this machine
	horovodrun -np 2 python examples/pytorch/digits.py

dev: $(VENV)/dev.stamp $(VENV)/installed.stamp ## install everything that a contributor needs
	@if [ -d .git ] && [ -n "$$(command -v pre-commit)" ]; then pre-commit install; fi

# ---- The environment

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'Horovod needs Python 3.10 or newer; say which with: make PYTHON=python3.11 …' >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || \
	  { echo 'no C++ compiler was found: install g++ 11 or newer, or say which with: CXX=… make …' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/demo.stamp: requirements/build.txt requirements/demo.txt | $(VENV)/python.stamp
	$(PIP) install -r requirements/demo.txt
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/demo.stamp
	$(PIP) install -r requirements/dev.txt
	@touch $@

$(VENV)/bench.stamp: requirements/bench.txt $(VENV)/demo.stamp
	$(PIP) install -r requirements/bench.txt
	@touch $@

# The sources are listed in a file, so that a removed source also leads to a new installation.
$(VENV)/sources.txt: FORCE | $(VENV)/python.stamp
	@echo '$(sort $(SOURCES))' | cmp -s - $@ || echo '$(sort $(SOURCES))' > $@
.PHONY: FORCE
FORCE:

$(VENV)/installed.stamp: $(VENV)/demo.stamp $(VENV)/sources.txt $(SOURCES)
	$(PIP) install --quiet --no-build-isolation --no-deps --force-reinstall .
	@touch $@

# ---- Tests

test: test-native test-sanitized test-python ## run all tests: native, with sanitizers, Python

test-native: build/native/build.ninja ## the native tests; ranks are threads
	cmake --build build/native --parallel $(JOBS)
	build/native/native/tests/native_tests

test-sanitized: $(SANITIZED:%=build/sanitize-%/build.ninja) ## the same with AddressSanitizer and ThreadSanitizer
	for kind in $(SANITIZED); do
	  cmake --build "build/sanitize-$$kind" --parallel $(JOBS)
	  "build/sanitize-$$kind/native/tests/native_tests"
	done

# pytest comes last, so that its closing lines are the last ones of `make test`.
test-python: $(VENV)/dev.stamp $(VENV)/installed.stamp | test-native test-sanitized ## the Python tests, on the installed package
	python -m pytest

build/native/build.ninja: | $(VENV)/demo.stamp
	cmake -S . -B $(@D) -G Ninja -DHVD_BUILD_TESTS=ON -DHVD_BUILD_BINDINGS=OFF

build/sanitize-%/build.ninja: | $(VENV)/demo.stamp
	cmake -S . -B $(@D) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHVD_SANITIZE=$* -DHVD_BUILD_TESTS=ON \
	  -DHVD_BUILD_BINDINGS=OFF
