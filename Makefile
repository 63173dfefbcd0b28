# Make targets: each makes the environment that it needs. `make` alone lists them.

VENV ?= .venv
# ONNX Runtime for CUDA and the other are the same module, so they need an environment each.
CUDA_VENV ?= .venv-cuda
# A server's environment, and those of the tools that list its packages, choose their versions, and build wheels.
SERVER_VENV ?= .venv-server
BUILD_VENV ?= .venv-build
LOWEST_VENV ?= .venv-lowest
LOCK_VENV ?= .venv-lock
WHEELS_VENV ?= .venv-wheels
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# What an installation compiles.
KERNELS := $(wildcard $(foreach depth,*/* */*/*,serve/jumok_serve/kernels/$(depth).cc serve/jumok_serve/kernels/$(depth).h))

COMMA := ,

PYTEST_OPTIONS := --numprocesses auto --dist loadgroup
PYTEST := $(VENV)/bin/pytest $(PYTEST_OPTIONS)

.DEFAULT_GOAL := help
.PHONY: help kernels-check kernels-asan kernels-qemu demo test test-fast test-all test-slow thorough check lint types proto sync bench offline serving http-load step import-memory gpu quality regression parity faults format clean
# Where an installation fails, its stamp must not say that it was done.
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

demo: $(VENV)/installed-serve  ## serve three models and translate texts through the SDK; BUNDLE names another one
	@$(VENV)/bin/python examples/demo.py $(BUNDLE)

test: $(VENV)/installed-dev  ## run the tests, but for slow ones; ARGS are pytest's
	$(PYTEST) -m "not slow" $(ARGS)

test-fast: $(VENV)/installed-dev  ## run the short tests that neither train, export nor start processes
	$(PYTEST) -m "unit and not long" $(ARGS)

# Neither PyTorch nor tools that generate code are there. Old packages meet newer ones of others, and may be warned. The
# SDK allows older packages than a server: they come first on its path.
LOWEST_PYTEST := $(LOWEST_VENV)/bin/pytest $(PYTEST_OPTIONS) -m unit -W default::DeprecationWarning
SDK_TESTS := tests/clients tests/proto --ignore tests/clients/test_unasync.py --ignore tests/proto/test_stubs.py
.PHONY: test-lowest
test-lowest: $(LOWEST_VENV)/lowest  ## run unit tests of SDK and server with the lowest versions of their packages; ARGS are pytest's
	$(LOWEST_PYTEST) tests/serve $(SDK_TESTS) $(ARGS)
	PYTHONPATH=$(LOWEST_VENV)/sdk $(LOWEST_PYTEST) $(SDK_TESTS) $(ARGS)

test-all: $(VENV)/installed-dev  ## run all tests, slow ones too
	$(PYTEST) $(ARGS)

test-slow: $(VENV)/installed-dev  ## run the slow tests alone
	$(PYTEST) -m slow $(ARGS)

thorough: export JUMOK_TEST_THOROUGH = 1
thorough: test-all parity faults  ## run all tests, parity on its whole grid and all fault scenarios: hours

check: lint types  ## lint, formatting and types

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/clang-format --dry-run --Werror $(KERNELS) $(wildcard tests/serve/kernels/*.cc tests/serve/kernels/*.h)
	$(VENV)/bin/lint-imports --no-cache

types: $(VENV)/installed-dev
	$(VENV)/bin/mypy

format: $(VENV)/installed-dev  ## format the code, and mend what can be mended
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format
	$(VENV)/bin/clang-format -i $(KERNELS) $(wildcard tests/serve/kernels/*.cc tests/serve/kernels/*.h)

# GCC 12 takes undefined vectors in its own AVX-512 headers for a fault of the caller: maybe-uninitialized is off.
kernels-check: $(VENV)/installed-dev  ## compile the kernels with warnings as errors
	$(VENV)/bin/python hatch_build.py build/kernels-check -O1 -Wall -Wextra -Werror -Wno-maybe-uninitialized

# A preloaded libstdc++ lets the sanitizer see exceptions; Python itself leaks. Tests of memory would measure the
# sanitizer's. The kernels for older processors are tested by a run of their own.
SANITIZED := tests/serve/kernels --ignore tests/serve/kernels/test_arena.py \
	--deselect tests/serve/kernels/test_products.py::test_weights_are_kept_once \
	--deselect tests/serve/kernels/test_kernels.py::test_older_instruction_sets \
	--deselect tests/serve/kernels/test_instruction_sets.py::test_emulated
kernels-asan: $(VENV)/installed-dev  ## test the kernels under AddressSanitizer and UBSan; ARGS are pytest's
	$(VENV)/bin/python hatch_build.py build/kernels-asan -O1 -g \
		-fsanitize=address,undefined -fno-sanitize-recover=undefined
	for kernels in "" JUMOK_TEST_KERNELS=avx2; do \
		env LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
			ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
			JUMOK_TEST_LIBRARY=build/kernels-asan/libjumok_kernels.so $$kernels \
			$(VENV)/bin/pytest -p no:xdist $(SANITIZED) $(ARGS) || exit 1; \
	done

kernels-qemu: $(VENV)/installed-dev  ## test the kernels on emulated processors: AArch64, AVX2, and older ones; ARGS are pytest's
	@for program in qemu-x86_64 qemu-aarch64 aarch64-linux-gnu-g++; do command -v $$program >/dev/null || { \
		echo "there is no $$program: install qemu-user and g++-aarch64-linux-gnu" >&2; exit 1; }; done
	$(VENV)/bin/pytest -p no:xdist tests/serve/kernels/test_instruction_sets.py $(ARGS)

proto: $(VENV)/installed-dev  ## generate the stubs from the .proto files
	$(VENV)/bin/python proto/generate.py

sync: $(VENV)/installed-dev  ## generate the synchronous SDK from the asynchronous one
	$(VENV)/bin/python clients/python/unasync.py

.PHONY: docs
docs: $(VENV)/installed-docs  ## build the documentation site in site/, and check its links
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	$(VENV)/bin/python -m tests.support.site_links site

bench: $(VENV)/installed-bench  ## measure recurrent models' and others' throughput against PyTorch; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.studies.throughput $(ARGS)

offline: $(VENV)/installed-bench  ## measure speed and memory against CTranslate2 at its best; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.offline $(ARGS)

serving: $(VENV)/installed-bench  ## load the server, beside two servers around CTranslate2; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.serving $(ARGS)

http-load: $(VENV)/installed-bench  ## compare HTTP with gRPC under load; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.http_load $(ARGS)

faults: $(VENV)/installed-bench  ## put the server under load and faults, for half an hour; ARGS are the benchmark's
	$(VENV)/bin/python -m tests.faults $(ARGS)

import-memory: $(VENV)/installed-bench  ## measure memory and time of imports, beside CTranslate2's conversions; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.studies.import_memory $(ARGS)

step: $(VENV)/installed-bench  ## measure a decoder step against its weight products alone; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.step $(ARGS)

parity: $(VENV)/installed-bench  ## compare decoding with Hugging Face's generate; ARGS are the benchmark's
	$(VENV)/bin/python -m tests.parity $(ARGS)

quality: $(VENV)/installed-bench  ## train models that differ in attention, and compare them; ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.studies.quality $(ARGS)

regression: $(VENV)/installed-bench  ## compare speed with another checkout; BEFORE is its folder, ARGS are the benchmark's
	$(VENV)/bin/python -m benchmarks.regression $(BEFORE) $(ARGS)

gpu:  ## check and measure decoding on a GPU; ARGS are the check's
	@$(MAKE) --no-print-directory VENV=$(CUDA_VENV) $(CUDA_VENV)/installed-bench-gpu
	$(CUDA_VENV)/bin/python -m benchmarks.gpu $(ARGS)

.PHONY: sbom
sbom:  ## list a server's Python packages in build/sbom.cdx.json, in the CycloneDX format
	@$(MAKE) --no-print-directory VENV=$(SERVER_VENV) $(SERVER_VENV)/installed-serve
	@$(MAKE) --no-print-directory VENV=$(BUILD_VENV) $(BUILD_VENV)/locked-build
	@mkdir -p build
	$(BUILD_VENV)/bin/cyclonedx-py environment --output-file build/sbom.cdx.json $(SERVER_VENV)

.PHONY: wheels
wheels:  ## build the wheels for x86-64 and AArch64 in dist/, in minutes; ARGS=--twice compares a second build
	@$(MAKE) --no-print-directory VENV=$(WHEELS_VENV) $(WHEELS_VENV)/locked-wheels
	$(WHEELS_VENV)/bin/python deploy/build_wheels.py $(ARGS)

# pip-compile writes the versions for the Python that runs it, which is the images'. jumok itself is "unsafe": left out.
PIP_COMPILE = JUMOK_NATIVE=off CUSTOM_COMPILE_COMMAND="make lock" $(LOCK_VENV)/bin/pip-compile --quiet --upgrade --generate-hashes \
	--strip-extras --unsafe-package jumok --no-annotate --no-emit-options
.PHONY: lock
lock:  ## choose the newest versions of packages for the images and wheels, in deploy/locks/; needs Python 3.11
	@$(MAKE) --no-print-directory VENV=$(LOCK_VENV) PYTHON=python3.11 $(LOCK_VENV)/bin/python
	@$(LOCK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pip-tools>=7.5'
	$(PIP_COMPILE) --output-file deploy/locks/build.txt deploy/locks/build.in
	$(PIP_COMPILE) --output-file deploy/locks/wheels.txt deploy/locks/wheels.in
	$(PIP_COMPILE) --output-file deploy/locks/cpu.txt --extra serve,http pyproject.toml
	$(PIP_COMPILE) --output-file deploy/locks/cuda.txt --extra serve-gpu,http pyproject.toml deploy/locks/cuda.in

clean:  ## remove the environment, and what tools and builds have left
	rm -rf $(VENV) $(CUDA_VENV) $(SERVER_VENV) $(BUILD_VENV) $(LOWEST_VENV) $(LOCK_VENV) $(WHEELS_VENV) build dist site serve/jumok_serve/kernels/*.so .mypy_cache .pytest_cache .ruff_cache

$(VENV)/installed-%: pyproject.toml hatch_build.py $(KERNELS) | $(VENV)/bin/python
	@echo "Installing jumok[$*] and what it needs into $(VENV); this may take minutes ..."
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

SERVER_EXTRAS := serve,http,otel,corpus,evaluate,moses,plot
LOWEST = $(LOWEST_VENV)/bin/python tests/lowest_versions.py
LOWEST_PIP = $(LOWEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check
$(LOWEST_VENV)/lowest: pyproject.toml tests/lowest_versions.py hatch_build.py $(KERNELS)
	@rm -rf $(LOWEST_VENV)
	@$(MAKE) --no-print-directory VENV=$(LOWEST_VENV) PYTHON=python3.11 $(LOWEST_VENV)/bin/python
	@echo "Installing the lowest versions of what SDK and server need into $(LOWEST_VENV); this may take minutes ..."
	@$(LOWEST) $(SERVER_EXTRAS) > $(LOWEST_VENV)/server.txt
	@$(LOWEST) cli > $(LOWEST_VENV)/sdk.txt
	@$(LOWEST_PIP) --constraint $(LOWEST_VENV)/server.txt --editable '.[$(SERVER_EXTRAS),test]'
	@$(LOWEST_PIP) --no-deps --target $(LOWEST_VENV)/sdk --requirement $(LOWEST_VENV)/sdk.txt
	@touch $@

$(VENV)/locked-%: deploy/locks/%.txt | $(VENV)/bin/python
	@echo "Installing $< into $(VENV) ..."
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

$(VENV)/bin/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "jumok needs Python 3.11 or newer$(if $(PYTHON),$(COMMA) not '$(PYTHON)'); name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
