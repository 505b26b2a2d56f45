# What a contributor runs. Needs python3 (3.10 or newer), a C++20 compiler and make; all else comes into .venv with pip and uv.
# A stamp is written only after its step has succeeded, and lies in the folder that it speaks of, so that to remove that
# folder is to start anew.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JOBS ?= $(shell nproc)
NP ?= 2
# Interpreters to build wheels for; all at hand if none is named.
PYTHONS ?=
# Further arguments of pytest and of the benchmarks.
PYTEST ?=
BENCH ?=

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Recipes, tests and examples find python, cmake, ninja and horovodrun here.
export PATH := $(BIN):$(PATH)
PIP := python -m pip --disable-pip-version-check install -qq
# Modules are compiled when they are first imported: most of the 20,000 never are. Two that install into .venv take turns.
INSTALL := flock $(VENV)/pip.lock python requirements/install.py $(BIN)/python
# Into an environment of its own, named by its requirements.
INSTALL_OWN = python requirements/install.py $(VENV)/$*/bin/python -r requirements/$*.txt
# Images of containers often set it; each process would then compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

NATIVE := $(shell find native -name '*.cc' -o -name '*.h')
CMAKE_LISTS := CMakeLists.txt $(shell find native -name CMakeLists.txt)
FAKES := $(shell find tests/fakes/gpu -name '*.cc' -o -name '*.h')
SOURCES := pyproject.toml README.md LICENSE $(CMAKE_LISTS) $(NATIVE) \
           $(shell find src -name '*.py' -o -name py.typed)

.DEFAULT_GOAL := help
.PHONY: help demo dev setup setup-core system test test-all test-native test-asan test-tsan test-threads test-sanitizers test-python test-jobs test-oldest test-matrix test-newest test-mxnet test-jax test-keras-backends \
        test-clients test-torch-versions test-libraries test-loggers test-notebooks test-loaders test-ray test-spark test-landscapes test-dashboard test-site site landscapes landscapes-runtime test-gpu build-tests build-sanitized fuzz lint lint-python lint-native bench bench-hosts bench-jax soak docs wheel wheels wheel-test wheels-test clean FORCE sdist release-check
FORCE:

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' Makefile | while IFS=@ read -r name text; do \
	  printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/installed.stamp ## train on two ranks of this machine
	horovodrun -np $(NP) python examples/pytorch/digits.py

# Everything from nothing: data, LANDSCAPES_TIME of training, and a sheet that shows maps and styles.
LANDSCAPES_TIME ?= 4m
LANDSCAPES := $(CURDIR)/build/landscapes
landscapes: $(VENV)/landscapes.stamp $(VENV)/installed.stamp ## train a network that paints landscapes on two ranks, and paint a sheet
	$(IN_LANDSCAPES) bash quickstart.sh $(LANDSCAPES) $(NP) $(LANDSCAPES_TIME)

dev: $(VENV)/dev.stamp $(VENV)/installed.stamp ## install what a contributor needs

SYSTEM := sshd:openssh-server ssh:openssh-client ip:iproute2 tc:iproute2 clang++:clang tmux:tmux java:openjdk-17-jre-headless chromium:chromium
system: ## install what tests of hosts, of pages and the fuzzers need beyond pip; on Debian, as root
	@export PATH=$$PATH:/usr/sbin:/sbin; missing=; \
	for each in $(SYSTEM); do command -v $${each%%:*} >/dev/null || missing+=" $${each##*:}"; done; \
	if [ -n "$$missing" ]; then apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing libclang-rt-dev; fi

# ---- The environment

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'Horovod needs Python 3.10 or newer; name one: make PYTHON=python3.11 ...' >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || \
	  { echo 'There is no C++ compiler: install g++ 11 or newer, or name one: CXX=... make ...' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) -r requirements/install.txt || echo 'Without uv, pip installs all else, which takes longer.'
	@touch $@

$(VENV)/demo.stamp: requirements/build.txt requirements/demo.txt $(VENV)/python.stamp
	@echo 'Installing PyTorch and the build tools into $(VENV) (about 1.2 GB on disk) ...'
	$(INSTALL) -r requirements/demo.txt
	@python -c 'import torch._dynamo, sklearn.datasets' 2>/dev/null || true  # compiled once, not by each rank
	@touch $@

$(VENV)/test.stamp: requirements/test.txt $(VENV)/demo.stamp
	$(INSTALL) -r requirements/test.txt
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/keras2.txt $(VENV)/test.stamp
	$(INSTALL) -r requirements/dev.txt
	$(INSTALL) --no-deps -r requirements/keras2.txt
	@python -c 'import keras, tf_keras' 2>/dev/null || true  # the same for TensorFlow, which talks to the console
	@touch $@

# Open MPI and MPICH, as starters of jobs and as peers. MPICH has a folder of its own, as each brings an mpirun.
$(VENV)/bench.stamp: requirements/bench.txt requirements/mpich.txt $(VENV)/demo.stamp
	$(INSTALL) -r requirements/bench.txt
	$(PIP) --no-compile --no-deps --ignore-installed --prefix $(VENV)/mpich -r requirements/mpich.txt
	@touch $@

# What builds wheels; zig, their compiler, takes 440 MB on disk.
$(VENV)/wheel.stamp: requirements/wheel.txt requirements/build.txt $(VENV)/python.stamp
	$(INSTALL) -r requirements/wheel.txt
	@touch $@

# What checks and describes a release.
$(VENV)/release.stamp: requirements/release.txt $(VENV)/wheel.stamp
	$(INSTALL) -r requirements/release.txt
	@touch $@

# The oldest TensorFlow that works.
$(VENV)/oldest.stamp: $(VENV)/%.stamp: requirements/%.txt $(VENV)/python.stamp
	python -m venv --clear $(VENV)/$*
	$(INSTALL_OWN)
	@$(VENV)/oldest/bin/python -c 'import keras, sklearn.datasets' 2>/dev/null || true
	@touch $@

# MXNet, which ends at Python 3.11.
$(VENV)/mxnet.stamp: $(VENV)/%.stamp: requirements/%.txt $(VENV)/python.stamp
	@python -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || \
	  { echo 'MXNet 1.9.1 needs Python 3.11 or older: make PYTHON=python3.11 ...' >&2; exit 1; }
	python -m venv --clear $(VENV)/$*
	$(INSTALL_OWN)
	@$(VENV)/mxnet/bin/python -c 'import mxnet, sklearn.datasets' 2>/dev/null || true
	@touch $@

# JAX with the NumPy that it wants, the newest and the oldest.
$(VENV)/jax.stamp $(VENV)/jax_oldest.stamp: $(VENV)/%.stamp: requirements/%.txt $(VENV)/python.stamp
	python -m venv --clear $(VENV)/$*
	$(INSTALL_OWN)
	@$(VENV)/$*/bin/python -c 'import jax, optax, sklearn.datasets' 2>/dev/null || true
	@touch $@

# A peer of the benchmarks of JAX: compiled here, by the compiler of Open MPI's wheel, and not for CUDA, whatever the path has.
$(VENV)/mpi4jax.stamp: requirements/mpi4jax.txt $(VENV)/bench.stamp
	python -m venv --clear $(VENV)/mpi4jax
	grep -v ^mpi4jax $< | $(VENV)/mpi4jax/bin/$(PIP) --no-compile -r /dev/stdin
	PATH=$(BIN):/usr/bin:/bin $(VENV)/mpi4jax/bin/$(PIP) --no-build-isolation --no-deps "$$(grep ^mpi4jax $<)"
	@touch $@

# Makes an environment that shares what is in .venv: no second PyTorch, no second TensorFlow.
define SHARE
python -m venv --clear $(@:.stamp=)
	python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(@:.stamp=)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
endef

# Libraries that train over torch.distributed.
$(VENV)/clients.stamp: requirements/clients.txt $(VENV)/demo.stamp $(VENV)/bench.stamp
	$(SHARE)
	$(VENV)/clients/bin/$(PIP) --no-compile -r requirements/clients.txt
	@$(VENV)/clients/bin/python -c 'import accelerate, lightning, transformers.trainer' 2>/dev/null || true
	@touch $@

# Other versions of PyTorch, before that of .venv on the path of Python: 15 GB.
TORCHES := torch_newest torch_oldest torch_oldest_backend
$(TORCHES:%=$(VENV)/%.stamp): $(VENV)/%.stamp: requirements/%.txt $(VENV)/test.stamp
	$(SHARE)
	$(INSTALL_OWN)
	@touch $@

# Libraries that load data.
$(VENV)/loaders.stamp: requirements/loaders.txt $(VENV)/dev.stamp
	$(SHARE)
	$(VENV)/loaders/bin/$(PIP) --no-compile -r requirements/loaders.txt
	@$(VENV)/loaders/bin/python -c 'import datasets, grain, webdataset' 2>/dev/null || true
	@touch $@

# Libraries that train on Horovod.
$(VENV)/libraries.stamp: requirements/libraries.txt $(VENV)/dev.stamp $(VENV)/bench.stamp
	$(SHARE)
	$(VENV)/libraries/bin/$(PIP) --no-compile -r requirements/libraries.txt
	@$(VENV)/libraries/bin/python -c 'import ignite.engine, pytorch_lightning, deepmd.tf' 2>/dev/null || true
	@touch $@

# Where hvd.log writes.
$(VENV)/loggers.stamp: requirements/loggers.txt $(VENV)/dev.stamp $(VENV)/bench.stamp
	$(SHARE)
	$(VENV)/loggers/bin/$(PIP) --no-compile -r requirements/loggers.txt
	@$(VENV)/loggers/bin/python -c 'import mlflow.tracking, trackio, tensorboard.compat.proto.event_pb2' 2>/dev/null || true
	@touch $@

# Notebooks, and what executes them.
$(VENV)/notebooks.stamp: requirements/notebooks.txt $(VENV)/test.stamp
	$(SHARE)
	$(VENV)/notebooks/bin/$(PIP) --no-compile -r requirements/notebooks.txt
	@$(VENV)/notebooks/bin/python -c 'import ipykernel.kernelapp, nbclient' 2>/dev/null || true
	@touch $@

# Ray and Spark beside what .venv holds, the newest and the oldest.
$(patsubst %,$(VENV)/%.stamp,ray ray_oldest spark spark_oldest): $(VENV)/%.stamp: requirements/%.txt $(VENV)/dev.stamp
	$(SHARE)
	$(VENV)/$*/bin/$(PIP) --no-compile -r requirements/$*.txt
	@touch $@

# Keras with all of its backends.
$(VENV)/keras_backends.stamp: requirements/keras_backends.txt $(VENV)/dev.stamp
	$(SHARE)
	$(VENV)/keras_backends/bin/$(PIP) --no-compile -r requirements/keras_backends.txt
	@$(VENV)/keras_backends/bin/python -c 'import jax, keras' 2>/dev/null || true
	@touch $@

# The app apps/landscapes, installed where it is edited.
$(VENV)/landscapes.stamp: requirements/landscapes.txt apps/landscapes/pyproject.toml $(VENV)/test.stamp
	$(SHARE)
	$(VENV)/landscapes/bin/$(PIP) --no-compile -r requirements/landscapes.txt
	$(VENV)/landscapes/bin/$(PIP) --no-compile --no-deps -e apps/landscapes
	@touch $@

# The page of a job, and what drives it in a browser.
$(VENV)/dashboard.stamp: requirements/dashboard.txt $(VENV)/test.stamp
	$(SHARE)
	$(VENV)/dashboard/bin/$(PIP) --no-compile -r requirements/dashboard.txt
	@touch $@

# The documentation site, and what drives it in a browser. The site itself needs no framework.
$(VENV)/site.stamp: requirements/site.txt $(VENV)/python.stamp
	$(SHARE)
	$(VENV)/site/bin/$(PIP) --no-compile -r requirements/site.txt
	@touch $@

# The names of the sources: it changes when one is added or removed.
$(VENV)/sources.txt: FORCE | $(VENV)/python.stamp
	@echo '$(sort $(SOURCES))' | cmp -s - $@ || echo '$(sort $(SOURCES))' > $@

# In the folder of the native tests, which then need not compile the libraries again.
INTO_NATIVE = build-dir=build/native cmake.define.HVD_BUILD_TESTS=ON 'build.targets=_native;horovod_tensorflow;horovod_mxnet;horovod_jax'
$(VENV)/installed.stamp: $(VENV)/demo.stamp $(VENV)/sources.txt $(SOURCES)
	$(PIP) --no-build-isolation --no-deps --force-reinstall $(INTO_NATIVE:%=--config-settings %) .
	@touch $@

# ---- Tests

# pytest comes last, so that its closing lines are those of `make test`.
test: ## the core of the tests: 7 to 11 minutes on two cores
	@$(MAKE) test-native
	@$(MAKE) test-python

test-all: test-sanitizers test-jobs test-oldest test-mxnet test-jax test-keras-backends test-clients test-libraries test-loggers test-notebooks test-loaders test-landscapes test-dashboard test-site test-ray test-spark test ## all tests that need neither a GPU nor minutes of fuzzing

# What starts jobs has the machine for itself: each job keeps all cores busy, and some tests say within how many seconds
# a fault must be told. Side by side they take hardly less time, and such tests fail. A few of these tests belong to the core.
STARTS_JOBS = $(wildcard $(addsuffix /test_*.py,tests/dist tests/examples))
CORE_JOBS = tests/dist/test_horovodrun.py tests/dist/test_faults.py tests/dist/test_torch_training.py \
            tests/examples/test_latency.py
# The rest, in as many lanes as there are cores.
OLDEST = tests/contract/test_oldest_tensorflow.py
BESIDE = $(filter-out tests/dist tests/clients tests/dashboard tests/site tests/examples tests/gpu tests/jax tests/keras_backends tests/libraries tests/loggers tests/loaders tests/mxnet tests/notebooks tests/ray tests/spark tests/fakes tests/wheel,$(patsubst %/,%,$(wildcard tests/*/)))
# Whoever names some tests waits for PyTorch and pytest only; tests of what is not installed are left out, and pytest says so.
WANTED = $(if $(PYTEST),test,dev bench)
test-python: $(WANTED:%=$(VENV)/%.stamp) $(VENV)/installed.stamp build/fakes/libfake_nccl.so ## the Python tests of the core, on the installed package
ifeq ($(PYTEST),)
	python -m pytest $(CORE_JOBS)
	python -m pytest -n $(JOBS) --dist loadfile $(BESIDE) --ignore $(OLDEST)
else
	python -m pytest $(PYTEST)
endif

test-jobs: $(VENV)/dev.stamp $(VENV)/bench.stamp $(VENV)/installed.stamp build/fakes/libfake_nccl.so ## the other tests that start jobs: hosts, MPI, faults, examples
	python -m pytest $(filter-out $(CORE_JOBS),$(STARTS_JOBS))

test-oldest: $(VENV)/oldest.stamp $(VENV)/dev.stamp $(VENV)/installed.stamp ## the contract on the oldest TensorFlow that works
	python -m pytest $(OLDEST)

test-mxnet: $(VENV)/mxnet.stamp $(VENV)/dev.stamp $(VENV)/installed.stamp ## the contract, training and examples on MXNet 1.9.1
	python -m pytest tests/mxnet $(PYTEST)

# NEWEST=1 leaves out the oldest version that works.
ON_OLD_JAX = tests/jax -k 'all_cases_on_two_ranks or dead_rank or import or copies or several_devices'
test-jax: $(VENV)/jax.stamp $(if $(NEWEST),,$(VENV)/jax_oldest.stamp) $(VENV)/dev.stamp $(VENV)/installed.stamp ## the contract, derivatives and training on JAX
ifeq ($(PYTEST)$(NEWEST),)
	JAX_ENVIRONMENT=jax_oldest python -m pytest $(ON_OLD_JAX)
endif
	python -m pytest tests/jax $(PYTEST)

test-keras-backends: $(VENV)/keras_backends.stamp $(VENV)/installed.stamp ## Keras 3 on TensorFlow, JAX and PyTorch
	python -m pytest tests/keras_backends $(PYTEST)

test-clients: $(VENV)/clients.stamp $(VENV)/installed.stamp $(VENV)/test.stamp ## DDP, FSDP2, Accelerate, Lightning 2 ... on torch.distributed
	python -m pytest tests/clients $(PYTEST)

# Not part of test-all or of CI.
test-torch-versions: $(TORCHES:%=$(VENV)/%.stamp) $(VENV)/installed.stamp ## the contract on other versions of PyTorch, torch.distributed on the newest and on the oldest for it; 15 GB
	$(VENV)/torch_newest/bin/python -m pytest tests/torch_distributed tests/contract/test_torch.py $(PYTEST)
	$(VENV)/torch_oldest_backend/bin/python -m pytest tests/torch_distributed tests/contract/test_torch.py $(PYTEST)
	$(VENV)/torch_oldest/bin/python -m pytest tests/contract/test_torch.py $(PYTEST)

# CELLS="torch-2.5 ..." names some, which may need gigabytes, TURN=NUMBER is for CI, RECORD=docs/data/matrix.json keeps the results.
CELLS ?=
TURN ?=
RECORD ?=
MATRIX = $(if $(TURN),--turn $(TURN)) $(if $(RECORD),--record $(RECORD)) $(CELLS)
test-matrix: $(VENV)/dev.stamp $(VENV)/bench.stamp $(VENV)/installed.stamp ## the contract on old and new versions of frameworks and of Python; an hour, tests/matrix/cells.yaml lists them
	python tests/matrix/matrix.py $(MATRIX)

test-newest: $(VENV)/dev.stamp $(VENV)/bench.stamp $(VENV)/installed.stamp ## which pins have newer versions; the contract on the newest of what is small
	python tests/matrix/matrix_newest.py
	python tests/matrix/matrix.py newest

test-libraries: $(VENV)/libraries.stamp $(VENV)/installed.stamp ## Ignite, Lightning 1.9 and DeePMD-kit train on two ranks
	python -m pytest tests/libraries $(PYTEST)

test-loggers: $(VENV)/loggers.stamp $(VENV)/installed.stamp ## hvd.log writes to TensorBoard, MLflow and trackio
	python -m pytest tests/loggers $(PYTEST)

# Where the kernel of a notebook runs, too.
test-notebooks: $(VENV)/notebooks.stamp $(VENV)/installed.stamp ## horovod.run in cells of a notebook, and docs/notebook.ipynb
	$(VENV)/notebooks/bin/python -m pytest tests/notebooks $(PYTEST)

test-loaders: $(VENV)/loaders.stamp $(VENV)/installed.stamp ## hvd.shard with Hugging Face, WebDataset, Grain, torchdata, Parquet, tf.data, Keras
	$(QUICKLY) $(VENV)/loaders/bin/python -m pytest tests/loaders $(PYTEST)

# In its folder, whose pyproject.toml says how. Tests of the page need Chromium: make system. Types are checked here, as only
# this environment has the libraries.
IN_LANDSCAPES = cd apps/landscapes && PATH=$(CURDIR)/$(VENV)/landscapes/bin:$(BIN):$$PATH
test-landscapes: $(VENV)/landscapes.stamp $(VENV)/dev.stamp $(VENV)/installed.stamp landscapes-runtime ## the app apps/landscapes: data, nets, training on ranks, its page in Chromium
ifeq ($(PYTEST),)
	$(IN_LANDSCAPES) python -m mypy
endif
	$(IN_LANDSCAPES) python -m pytest $(PYTEST)

# What the browser runs models with: too large for the repository, so fetched once, by version and hash.
landscapes-runtime: $(VENV)/landscapes.stamp
	@$(VENV)/landscapes/bin/python apps/landscapes/fetch_runtime.py

# Tests of the page need Chromium: make system.
test-dashboard: $(VENV)/dashboard.stamp $(VENV)/installed.stamp ## the live page of a job in Chromium, the terminal and the metrics
	$(VENV)/dashboard/bin/python -m pytest tests/dashboard $(PYTEST)

# Tests of the pages need Chromium: make system.
test-site: $(VENV)/site.stamp $(VENV)/dev.stamp $(VENV)/installed.stamp ## the documentation site: links, pages in Chromium, its programs
	$(VENV)/site/bin/python -m pytest tests/site $(PYTEST)

# What loads PyTorch and TensorFlow itself does so as quickly as what it starts.
QUICKLY = PYTHONPATH=$(CURDIR)/tests/quick_imports
# An old Ray warns of itself.
ON_OLD_RAY = tests/ray/test_ray_executor.py tests/ray/test_ray_ranks.py tests/ray/test_ray_elastic.py -W ignore \
             -k 'grouped or pytorch or killed_worker or snippets or caller_is_used'
test-ray: $(VENV)/ray.stamp $(if $(NEWEST),,$(VENV)/ray_oldest.stamp) $(VENV)/installed.stamp ## ranks on a local Ray cluster of two nodes
ifeq ($(PYTEST)$(NEWEST),)
	$(QUICKLY) $(VENV)/ray_oldest/bin/python -m pytest $(ON_OLD_RAY)
endif
	$(QUICKLY) $(VENV)/ray/bin/python -m pytest tests/ray $(PYTEST)

# Spark needs Java: make system.
ON_OLD_SPARK = tests/spark -W ignore -k 'places or names_rank or lost_executor or broke_off or pipeline_learns'
test-spark: $(VENV)/spark.stamp $(if $(NEWEST),,$(VENV)/spark_oldest.stamp) $(VENV)/installed.stamp ## ranks in tasks of a local Spark cluster of two executors
ifeq ($(PYTEST)$(NEWEST),)
	$(QUICKLY) $(VENV)/spark_oldest/bin/python -m pytest $(ON_OLD_SPARK)
endif
	$(QUICKLY) $(VENV)/spark/bin/python -m pytest tests/spark tests/unit/spark $(PYTEST)

# The GPU driver and the NCCL of tests, which the native tests need, too.
build/fakes/libfake_nccl.so: $(FAKES) tests/fakes/gpu/CMakeLists.txt | build/native/build.ninja
	cmake --build build/native --target fake_libraries --parallel $(JOBS)
	@mkdir -p $(@D)
	cp --remove-destination build/native/native/fakes/*.so $(@D)

test-gpu: $(VENV)/dev.stamp $(VENV)/installed.stamp ## on a machine with a GPU, with a PyTorch for it in .venv
	python -m pytest tests/gpu $(PYTEST)

# Plans of large jobs take no path through the code that those of small ones do not: AddressSanitizer sees the small ones.
test-native: build/native/build.ninja ## the native tests: ranks are threads, no launcher
test-asan: build/asan/build.ninja ## the same with AddressSanitizer and UndefinedBehaviorSanitizer
test-asan: CASES = '-plan hosts: up to 4096' '-plan hosts: larger jobs'
test-tsan: build/tsan/build.ninja ## the same with ThreadSanitizer
# On a busy machine a thread of an earlier test may not have ended when ranks are forked, which would end these. A report
# ends its process: nobody reads how a forked rank ended, but its test misses what it says.
test-tsan: export TSAN_OPTIONS = die_after_fork=0 halt_on_error=1
test-native test-asan test-tsan:
	@cmake --build $(<D) --target native_tests --parallel $(JOBS)
	$(<D)/native/tests/native_tests $(CASES)

test-threads: $(VENV)/dev.stamp build-sanitized ## Python threads on an engine with each sanitizer
	tests/threads/sanitized.sh asan build/asan
	tests/threads/sanitized.sh tsan build/tsan

test-sanitizers: build-sanitized ## both sanitizers side by side, then Python threads with each
	@$(MAKE) --jobs 2 --output-sync=target test-asan test-tsan
	@$(MAKE) test-threads

build-tests: build-sanitized $(VENV)/installed.stamp build/native/build.ninja build/fakes/libfake_nccl.so ## compile what the native tests run
	cmake --build build/native --target native_tests native_latency --parallel $(JOBS)

build-sanitized: $(VENV)/dev.stamp build/asan/build.ninja build/tsan/build.ninja
	cmake --build build/asan --target native_tests _native fuzzers --parallel $(JOBS)
	cmake --build build/tsan --target native_tests _native --parallel $(JOBS)

# It has no wheel for newer interpreters; python3 of .venv is known only behind its stamp.
MXNET = $(shell $(PYTHON) -c 'import sys; print("mxnet" if sys.version_info < (3, 12) else "")')
ENVIRONMENTS ?= oldest $(MXNET) clients dashboard jax jax_oldest keras_backends libraries loggers notebooks loaders landscapes ray ray_oldest site spark spark_oldest
setup: setup-core $(ENVIRONMENTS:%=$(VENV)/%.stamp)  # every environment, or those of one turn of .ci/run
setup-core: $(patsubst %,$(VENV)/%.stamp,dev bench installed) build/fakes/libfake_nccl.so  # what all its parts need

# Files are compiled in bundles, one or two for each library, which takes half the time.
CONFIGURE = cmake -S . -B $(@D) -G Ninja -DHVD_BUILD_TESTS=ON -DPython_EXECUTABLE=$(BIN)/python \
            -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=18
# Compiles in half the time of -O2, and a trace needs no more than line numbers.
SANITIZED = -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -g1'
build/native/build.ninja: | $(VENV)/installed.stamp  # which configures it
	@test -f $@ || { rm $(VENV)/installed.stamp; $(MAKE) $(VENV)/installed.stamp; }
# By clang, if there is one: the fuzzers need it, and share this build. From nothing, as CMake forgets what it was told when
# the compiler changes, and leaves the fuzzers of the other one.
build/asan/build.ninja: $(VENV)/dev.stamp
	rm -rf $(@D)
	$(CONFIGURE) $(SANITIZED) $$(native/fuzz/compiler.sh || echo -DHVD_SANITIZE=address,undefined)
build/tsan/build.ninja: $(VENV)/dev.stamp
	$(CONFIGURE) $(SANITIZED) -DHVD_SANITIZE=thread

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/dev.stamp $(VENV)/installed.stamp build/asan/build.ninja ## try decoders on what nobody would send, FUZZ_SECONDS=60 each; needs clang
	@test -d build/asan/native/fuzz || ! native/fuzz/compiler.sh >/dev/null || \
	  { rm build/asan/build.ninja; $(MAKE) build/asan/build.ninja; }  # clang has come since
	FUZZ_SECONDS=$(FUZZ_SECONDS) JOBS=$(JOBS) native/fuzz/run.sh

# ---- Checks

lint: lint-python lint-native ## formatters, linters, types, layers, spelling, plain English

lint-python: $(VENV)/dev.stamp
	ruff check .
	ruff format --check .
	mypy
	PYTHONPATH=src lint-imports --no-logo
	codespell
	python tests/layers/prose.py
	python tests/layers/foreign_imports.py

# In the bundles in which files are compiled, so that what many include is read once.
lint-native: $(VENV)/dev.stamp build/lint/configured.stamp
	clang-format --dry-run -Werror $(NATIVE) $(FAKES)
	@echo 'clang-tidy native'
	@python tests/layers/translation_units.py build/lint | xargs -n 1 -P $(JOBS) clang-tidy -p build/lint --quiet \
	  --removed-arg=-fno-thread-jumps \
	  2> >(grep -vE '^[0-9]+ warnings? (generated|treated)' >&2)
	@clang-tidy --quiet $(filter native/fuzz/%.cc,$(NATIVE)) -- -std=c++20 -Inative  # which g++ does not build

# Nothing is built here: clang-tidy reads how each file would be compiled.
build/lint/configured.stamp: $(CMAKE_LISTS) $(VENV)/sources.txt | $(VENV)/dev.stamp
	$(CONFIGURE)
	@touch $@

# ---- The rest

bench: $(VENV)/dev.stamp $(VENV)/bench.stamp $(VENV)/installed.stamp ## measure against gloo, Open MPI and MPICH; minutes
	python benchmarks/allreduce.py $(BENCH)
	python benchmarks/many_tensors.py $(BENCH)
	python benchmarks/latency.py
	python benchmarks/shared_memory.py
	python benchmarks/training_step.py
	python benchmarks/keras_step.py
	python benchmarks/startup.py
	python benchmarks/output.py
	python benchmarks/many_ranks.py
	python benchmarks/timeline.py

bench-jax: $(VENV)/jax.stamp $(VENV)/mpi4jax.stamp $(VENV)/dev.stamp $(VENV)/installed.stamp ## JAX beside its own collectives, mpi4jax and PyTorch; minutes
	python benchmarks/jax_step.py $(BENCH)

bench-hosts: $(VENV)/bench.stamp $(VENV)/installed.stamp ## the same between emulated hosts, as root; half an hour
	python benchmarks/between_hosts.py $(BENCH)
	python benchmarks/between_hosts.py --rate-mbit 0 --bytes 4 67108864 $(BENCH)
	python benchmarks/replay.py
	python benchmarks/simulate.py

# Also writes docs/data/elastic_soak.json, from which docs/benchmarks.md has its table, with SOAK='--json docs/data/elastic_soak.json'.
STEPS ?= 400000
SOAK ?=
soak: $(VENV)/demo.stamp $(VENV)/installed.stamp ## an elastic job of STEPS=400000 steps: whether anything grows; minutes
	python benchmarks/elastic_soak.py --steps $(STEPS) $(SOAK)

docs: $(VENV)/dev.stamp $(VENV)/installed.stamp ## write tables and the stub; check programs, names and links
	python -m horovod._settings.document docs/settings.md
	python -m horovod.runner.cli.document docs/launching.md
	python -m horovod.runner.doctor.document docs/upgrading.md
	python benchmarks/document.py docs/benchmarks.md
	python tests/matrix/matrix_document.py docs/compatibility.md
	python -m nanobind.stubgen -q -D -m horovod._native -o src/horovod/_native.pyi
	python -m pytest tests/layers/test_documents.py tests/layers/test_commands_in_documents.py tests/examples/test_commands.py

site: $(VENV)/site.stamp ## build the documentation site into build/site; open its index.html, without a server
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/python -m mkdocs build

wheel: $(VENV)/wheel.stamp ## build wheels for every Linux with glibc 2.28 into dist/, PYTHONS="python3.10 ..." or all at hand
	wheels/build.sh $(PYTHONS)

sdist: $(VENV)/release.stamp ## the source distribution, what it contains and needs (CycloneDX), and checksums, into dist/
	wheels/sdist.sh

release-check: $(VENV)/release.stamp ## check the files in dist/: metadata, tags, stable ABI, checksums, extras
	wheels/check.sh

wheels: $(VENV)/wheel.stamp ## build all wheels of a release into dist/: each CPython from 3.10 on, x86-64 and aarch64
	wheels/all.sh

wheel-test: wheel $(VENV)/dev.stamp ## install them in every Python at hand, where there is no compiler, and run jobs
	tests/wheel/install.sh dist

# The emulator is qemu-user of Debian.
wheels-test: wheels $(VENV)/dev.stamp ## the same for all wheels, also in Pythons of Debian, those of aarch64 in an emulator
	tests/wheel/install.sh dist
	tests/wheel/debian_pythons.sh dist

clean: ## remove what was built; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
