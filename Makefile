# Commands for users and developers, all of which work in a fresh clone; `make help` lists them. Needs python3 with venv, a C++20 compiler and
# make; all other tools are installed into .venv with uv or pip (tools/packages). Longer recipes are in scripts/.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
# Build of PyTorch, such as TORCH="torch==2.13.0". If empty, the CPU build unless there is an NVIDIA GPU (tools/packages/pytorch.py).
TORCH ?=
TORCH_VERSION ?= 2.13.0
# uv or pip. If uv is not available, pip is used.
INSTALLER ?= uv
# The other frameworks are for tests and benchmarks only. Their tests are skipped if a variable is empty:  make test TENSORFLOW= JAX= RAY=
# KERAS2 is installed without its dependencies, because it requires "tensorflow", which has the same files as tensorflow-cpu.
TENSORFLOW ?= tensorflow-cpu==2.21.0
KERAS ?= keras==3.15.*
KERAS2 ?= tf_keras==2.21.*
JAX ?= jax[cpu]==0.10.*
# Jobs on Spark also need Java 17, which scripts/install-system-packages.sh installs if it is missing.
PYSPARK ?= pyspark==4.3.*
RAY ?= ray[train,tune]==2.60.*
# For the second tier of tests only: further libraries for estimators (Lightning, a store on S3), and libraries on top of JAX.
SPARK_LIBRARIES ?= 'lightning==2.6.*' 's3fs>=2025.3' 'moto[server]>=5'
JAX_LIBRARIES ?= flax equinox dm-haiku orbax-checkpoint
WORKERS ?= 2
JOBS ?= $(shell nproc)
# Number of processes that run Python tests: more than there are cores, because many tests wait. TESTERS=0: run tests one after another.
TESTERS ?= $(shell n=$$(nproc); echo $$((n + 2 < 8 ? n + 2 : 8)))
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 600
MINUTES ?= 10
MUTANTS ?= 20

# If a single target is made, its time is recorded for `make help`.
BEGAN := $(shell date +%s)
AGE := $(if $(wildcard $(VENV)/stamps/editable $(VENV)/stamps/package),again,first)
RECORD = $(if $(filter $@,$(MAKECMDGOALS)),$(if $(word 2,$(MAKECMDGOALS)),:,scripts/record-time.sh $@ $(BEGAN) $(AGE)),:)

SIDE_BY_SIDE := $(if $(filter-out 0,$(TESTERS)),-n $(TESTERS)) --slowest=20
# Python tests run in parts (tests/lanes.py), each with one process unless PROCESSES_... sets more. The longest starts first, and has priority.
PARTS := tensorflow others torch jax spark-ray
NICENESS_tensorflow := 5
PROCESSES_first_others := $(shell echo $$(($(JOBS) + 1)))
PROCESSES_more_others := $(JOBS)
PROCESSES_more_tensorflow := 2
# $(call in_parts,TIER,OTHER TARGETS): the other targets start first and run beside the parts, most of which wait much.
in_parts = @echo "Python tests run in $(words $(PARTS)) parts$(if $2, beside $2); the output of each comes when it has ended."; \
  $(MAKE) --no-print-directory -j$(if $(filter 0 1,$(TESTERS)),1,$(if $2,5,4)) --output-sync=line $2 $(PARTS:%=$1-%)
of_part = PART=$1-$2 nice -n $(or $(NICENESS_$2),10) scripts/python-tests.sh --tier=$1 --part=$2 --slowest=10 $(if $(filter 0 1,$(TESTERS)),,$(PROCESSES_$1_$2:%=-n %))
STAMPS := $(VENV)/stamps
# Requirements of `make test`, and additional ones of `make test-more`. Steps may run in parallel, because pip and apt use locks. With this
# order, the extension is compiled while packages are installed.
FIRST := $(addprefix $(STAMPS)/,doctest tools editable first lint system launchers)
MORE := $(addprefix $(STAMPS)/,more system-more launchers-more nvrtc)
export PATH := $(abspath $(VENV))/bin:$(PATH)
export VIRTUAL_ENV := $(abspath $(VENV))
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export INSTALLER
# Runs with the Python of .venv.
INSTALL := python -m tools.packages install
# Packages are installed without bytecode. The first import must write it, or else each of hundreds of processes would compile PyTorch.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

# Sources of the extension (NATIVE), and of the whole package (SOURCES).
NATIVE := $(wildcard pyproject.toml CMakeLists.txt) $(shell find core bindings -type f 2>/dev/null)
SOURCES := $(NATIVE) README.md $(shell find src/horovod -type f -not -name '*.pyc' 2>/dev/null)

# Versions of TensorFlow with which the same build of the library is tested, each in a separate environment.
TF_MATRIX ?= 2.13.1 2.16.2 2.18.1 2.21.0
# Arguments of python -m tools.wheels, and the Pythons in which wheels are tested.
WHEELS ?=
PYTHONS ?=
# MXNet 1.9.1 needs Python 3.11 or older.
MXNET_PYTHON ?= $(firstword $(shell command -v python3.11 python3.10) $(PYTHON))

.PHONY: help train environment quick test test-more test-all kernels unit unit-more lint format docs site pytest asan tsan fuzz \
    fuzz-programs mutants bench gpu-check wheel wheels test-wheels clean test-tf-matrix test-mxnet test-cluster test-launchers test-mpis \
    test-kubernetes test-containers test-clouds $(PARTS:%=first-%) $(PARTS:%=more-%) $(PARTS:%=long-%)

help: ## this list, with the times of targets measured here (build/times.tsv) or on 2 cores (scripts/times.tsv)
	@scripts/help.sh

train: $(STAMPS)/tools ## set up, build, install, and train a small network on two workers
	$(MAKE) --no-print-directory -j2 $(STAMPS)/package $(STAMPS)/torch
	horovodrun -np $(WORKERS) python examples/pytorch/digits.py
	@$(RECORD)

# Install the requirements of all tests.
environment: $(FIRST) $(MORE)
	@:

test: ## set up and run the first tier of tests: C++, lint, types, each frontend, launcher and failures on one host, a test of each integration
	$(MAKE) --no-print-directory -j2 $(FIRST)
	$(call in_parts,first,unit lint docs)
	@$(RECORD)

test-more: ## set up and run the second tier: hosts, launchers, Spark, Ray, second backends
	$(MAKE) --no-print-directory -j2 environment
	$(MAKE) --no-print-directory unit-more
	scripts/install-ptxas.sh
	$(call in_parts,more)
	@$(RECORD)

test-all: ## both tiers, then tests that repeat at length, MXNet, sanitizers, containers, Kubernetes and versions of TensorFlow
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-more
	$(call in_parts,long)
	$(MAKE) --no-print-directory test-mxnet
	$(MAKE) --no-print-directory asan
	$(MAKE) --no-print-directory tsan
	$(MAKE) --no-print-directory test-containers
	$(MAKE) --no-print-directory test-kubernetes
	$(MAKE) --no-print-directory test-tf-matrix
	@$(RECORD)

$(PARTS:%=first-%): first-%:
	$(call of_part,first,$*)

$(PARTS:%=more-%): more-%:
	$(call of_part,more,$*)

$(PARTS:%=long-%): long-%:
	$(call of_part,long,$*)

quick: $(STAMPS)/quick ## tests of the launcher and of pure parts, without frameworks; PYTEST_ARGS="-k name" selects tests
	nice python -m pytest --quick --tier=first $(if $(PYTEST_ARGS),$(PYTEST_ARGS),$(SIDE_BY_SIDE))
	@$(RECORD)

unit: $(STAMPS)/doctest $(STAMPS)/editable ## the core's C++ unit tests, first tier: with simulated GPUs only if they or the core have changed
	nice scripts/unit-tests.sh --tier first build/unit ""
	@$(RECORD)

unit-more: $(STAMPS)/doctest $(STAMPS)/editable ## the C++ unit tests that the first tier omits: with simulated GPUs and MPI, benchmarks, fuzz programs
	nice scripts/unit-tests.sh --tier more build/unit ""
	@$(RECORD)

kernels: $(STAMPS)/tools ## compile the GPU kernels to core/kernels/kernels.ptx, which is committed; installs NVRTC, needs no GPU
	nice scripts/compile-kernels.sh

lint: $(STAMPS)/lint $(STAMPS)/editable ## formatting, ruff, mypy, import-linter, import cycles, the map of packages, layers of C++ includes, starts of Python, wording
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $$(scripts/cxx-files.sh)
	mypy
	lint-imports
	python tools/check_imports.py
	python tools/package_map.py
	python tools/check_includes.py
	python tools/check_starts.py
	python tools/check_prose.py
	@git ls-files -z | xargs -0 du -k | awk '$$1 > 2048 { print $$2 " has more than 2 MiB, which every clone would contain"; bad = 1 } END { exit bad }'
	@$(RECORD)

format: $(STAMPS)/lint ## format Python and C++ files
	ruff format .
	clang-format -i $$(scripts/cxx-files.sh)

docs: $(STAMPS)/editable ## check that generated documents and links are up to date
	nice scripts/check-docs.sh

site: $(STAMPS)/more $(STAMPS)/editable ## build all pages and the API reference as a site in build/site; warnings and dead links are errors
	nice python -m sphinx -E -W --keep-going -q -b html -c tools/site -d build/site-cache . build/site
	@$(RECORD)

pytest: $(FIRST) $(MORE) ## Python tests; PYTEST_ARGS="-k name" selects tests
	nice $(if $(PYTEST_ARGS),python -m pytest $(PYTEST_ARGS),scripts/python-tests.sh $(SIDE_BY_SIDE))
	@$(RECORD)

test-launchers: $(FIRST) $(MORE) ## jobs of mpirun, mpiexec, srun and torchrun, all cases
	nice python -m pytest tests/launchers $(PYTEST_ARGS)
	@$(RECORD)

test-mpis: $(FIRST) ## data transport by MPI with Open MPI 4, MPICH 4 and Intel MPI, set up in .venv-mpi-*; MPIS="intel" selects one
	PYTHON=$(PYTHON) nice scripts/test-other-mpis.sh $(MPIS) -- $(PYTEST_ARGS)
	@$(RECORD)

test-cluster: $(FIRST) ## the tests on several simulated hosts, with every fault also on four hosts
	nice python -m pytest tests/cluster $(PYTEST_ARGS)
	@$(RECORD)

test-clouds: $(FIRST) ## tests that need Azure ML's SDK, boto3 or MLflow, in a separate environment, set up in .venv-clouds (500 MB)
	nice scripts/test-clouds.sh $(PYTEST_ARGS)
	@$(RECORD)

test-kubernetes: $(FIRST) $(STAMPS)/more ## jobs on a Kubernetes cluster created here, or on that of KUBECONFIG=FILE IMAGE=IMAGE (with this version and NumPy); NAMESPACE=default
	KUBECONFIG="$(KUBECONFIG)" IMAGE="$(IMAGE)" NAMESPACE="$(NAMESPACE)" CRDS="$(CRDS)" nice scripts/test-kubernetes.sh $(PYTEST_ARGS)
	@$(RECORD)

test-containers: $(FIRST) ## build and run the images of deploy/docker, on a Debian created here or on BASE=IMAGE; KEEP=FOLDER keeps layers
	BASE="$(BASE)" KEEP="$(KEEP)" nice scripts/test-containers.sh $(PYTEST_ARGS)
	@$(RECORD)

test-tf-matrix: $(if $(WHEEL),,wheel) ## the TensorFlow and Keras tests with each version in TF_MATRIX, set up in .venv-tf-VERSION; WHEEL=FILE
	WHEEL="$(WHEEL)" PYTHON=$(PYTHON) PYTEST_ARGS="$(PYTEST_ARGS)" nice scripts/test-tf-matrix.sh $(TF_MATRIX)
	@$(RECORD)

test-mxnet: ## the MXNet tests, in a separate environment with MXNet 1.9.1 and NumPy 1.23.5, set up in .venv-mxnet
	PYTHON=$(MXNET_PYTHON) PYTEST_ARGS="$(PYTEST_ARGS)" nice scripts/test-mxnet.sh
	@$(RECORD)

asan: $(STAMPS)/doctest $(STAMPS)/tools ## the C++ unit tests under the address sanitizer
	nice scripts/unit-tests.sh build/asan address
	@$(RECORD)

tsan: $(STAMPS)/doctest $(STAMPS)/tools ## the C++ unit tests under the thread sanitizer
	nice scripts/unit-tests.sh build/tsan thread
	@$(RECORD)

fuzz: $(STAMPS)/tools ## coverage-guided fuzzing of all code that reads untrusted bytes, FUZZ_SECONDS=600; installs clang
	nice scripts/fuzz.sh $(FUZZ_SECONDS) build/fuzz
	@$(RECORD)

fuzz-programs: $(STAMPS)/doctest $(STAMPS)/editable ## random programs on complete engines, MINUTES=10: searches for hangs and wrong results
	nice scripts/fuzz-programs.sh $(MINUTES) build/unit
	@$(RECORD)

mutants: $(FIRST) ## mutation tests: check that tests notice small mistakes, MUTANTS=20 per Python module and a table in C++
	nice python -m tools.mutants --most $(MUTANTS)
	@$(RECORD)

bench: $(STAMPS)/torch $(STAMPS)/package $(STAMPS)/peers ## measure against gloo, DDP and Open MPI; BENCH_ARGS="--quick" for a minute of it
	python benchmarks/run.py --mpi-prefix $(VENV)-peers $(BENCH_ARGS)
	@$(RECORD)

gpu-check: ## on a machine with a GPU, without a network: build, tests on the GPU, compute-sanitizer, benchmark; see docs/gpu.md
	scripts/gpu-check.sh

wheel: $(STAMPS)/tools ## build a wheel for this machine only, quickly, in build/one-wheel
	rm -rf build/one-wheel
	pip wheel --no-deps --no-build-isolation --config-settings=build-dir=build/wheel -w build/one-wheel .
	@$(RECORD)

wheels: ## build a release in dist/: sdist, manylinux wheels, bill of materials; WHEELS="--arch x86_64 aarch64 --twice"
	PYTHON=$(PYTHON) nice scripts/build-wheels.sh $(WHEELS)
	@$(RECORD)

test-wheels: ## install the wheels of make wheels in an empty environment of each Python, run jobs there; PYTHONS="python3.10 python3.12"
	nice scripts/test-wheels.sh $(PYTHONS)
	@$(RECORD)

clean: ## remove all build outputs and environments
	rm -rf build dist .gpu-pack $(VENV) $(VENV)-peers .venv-tf-* .venv-wheels .venv-clouds .venv-mxnet .venv-openmpi .venv-mpich .venv-mpi-* runs

# -- environments: stamp files skip steps that have been done ---------------------------------------------------------------------
$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: $(STAMPS)/venv
	$(INSTALL) cmake ninja nanobind scikit-build-core cloudpickle msgspec pyyaml pyzmq
	touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	torch="$(TORCH)"; [ -n "$$torch" ] || torch=$$(python -m tools.packages pytorch $(TORCH_VERSION)); $(INSTALL) $$torch numpy scikit-learn tqdm
	touch $@

# `first` includes these packages.
$(STAMPS)/lint: $(STAMPS)/venv pyproject.toml
	[ $(STAMPS)/first -nt pyproject.toml ] || scripts/install-dev-tools.sh lint
	touch $@

$(STAMPS)/first: $(STAMPS)/torch pyproject.toml
	scripts/install-dev-tools.sh test lint kubernetes -- $(TENSORFLOW) $(if $(TENSORFLOW)$(JAX),'$(KERAS)') $(if $(JAX),'$(JAX)' optax) \
	  $(if $(PYSPARK),'$(PYSPARK)' 'pandas<3' pyarrow) $(if $(RAY),'$(RAY)')
	$(if $(TENSORFLOW),$(INSTALL) --no-deps '$(KERAS2)')
	touch $@

# Installed together with the packages of the first tier, so that all versions match.
$(STAMPS)/more: $(STAMPS)/first pyproject.toml
	scripts/install-dev-tools.sh dev test lint kubernetes site timeline -- $(if $(JAX),$(JAX_LIBRARIES)) $(if $(PYSPARK),$(SPARK_LIBRARIES))
	touch $@

# The package is installed either like a user installs it (train, bench), or editable (test).
$(STAMPS)/package: $(STAMPS)/tools $(SOURCES)
	scripts/install.sh
	touch $@ && rm -f $(STAMPS)/editable

$(STAMPS)/editable: $(STAMPS)/tools $(NATIVE)
	scripts/install.sh --editable
	touch $@ && rm -f $(STAMPS)/package

# Requirements of `make quick` in a fresh clone, without frameworks.
$(STAMPS)/quick: $(STAMPS)/editable pyproject.toml scripts/install-dev-tools.sh
	scripts/install-dev-tools.sh test
	touch $@

$(STAMPS)/doctest: $(STAMPS)/venv
	scripts/install-doctest.sh
	touch $@

# System packages for tests; tests are skipped if they cannot be installed.
$(STAMPS)/system: $(STAMPS)/venv scripts/install-system-packages.sh
	scripts/install-system-packages.sh first
	touch $@

$(STAMPS)/system-more: $(STAMPS)/system
	scripts/install-system-packages.sh more
	touch $@

# In separate environments, so that their mpiexec is not found instead of the user's.
$(STAMPS)/launchers: $(STAMPS)/tools scripts/install-launchers.sh
	PYTHON=$(PYTHON) scripts/install-launchers.sh openmpi
	touch $@

$(STAMPS)/launchers-more: $(STAMPS)/launchers
	PYTHON=$(PYTHON) scripts/install-launchers.sh mpich
	touch $@

# Compiler for the test that compiles the device kernels; the test is skipped if it cannot be installed.
$(STAMPS)/nvrtc: $(STAMPS)/tools scripts/install-nvrtc.sh
	scripts/install-nvrtc.sh
	touch $@

# MPI as wheels, in a separate environment, so that tests do not find its mpiexec.
$(STAMPS)/peers: $(STAMPS)/tools
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m tools.packages install numpy mpi4py openmpi
	touch $@
