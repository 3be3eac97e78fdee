# Each target sets up what it needs in .venv, once; only Python 3.11+ and a package index
# are taken for granted. Another interpreter: make test PYTHON=python3.13

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
	&& echo "$$python" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
ROWS ?= 100000
PYTEST_ARGS ?=
# Fits that "make chaos" strikes, and the seed of the first; drawn if there is none.
N ?= 200
SEED ?=
CHAOS_ARGS ?=
# Which cells "make quality" looks at: QUALITY_ARGS="--only SFB --cells 40".
QUALITY_ARGS ?= --processes 2 --write ../docs/measured/quality.csv
# The package that "make mutation" changes, and how many changes it tries.
PACKAGE ?= kernels
MUTANTS ?= 200
MUTATION_ARGS ?=
# Processes that run tests, one more than cores, as tests of clusters wait now and then; a
# file's tests stay together, as they share clusters.
PYTEST_WORKERS ?= 3
# Without it (make test TORCH=), the tests of torch modules are skipped.
TORCH ?= torch==2.13.0 safetensors
PACKAGES-test = $(TORCH)
PACKAGES-mutation = $(TORCH)

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test chaos quality mutation docs bench lint format clean distclean

help:
	@echo "make demo       train on real text with a local cluster of two processes"
	@echo "make test       run the whole test suite (PYTEST_ARGS='-m \"not slow\"' for less)"
	@echo "make quality    compare the models of default parameters with the optima"
	@echo "make chaos      strike random fits by random faults (N=$(N) SEED=...)"
	@echo "make mutation   test the tests by changing PACKAGE=$(PACKAGE) (MUTANTS=$(MUTANTS) SEED=...)"
	@echo "make docs       build the documentation into docs/_build/html"
	@echo "make bench      compare with other libraries, then run the benchmarks once (ROWS=$(ROWS))"
	@echo "make lint       check layers, style and types"
	@echo "make format     rewrite the sources in the project's style"
	@echo "make clean      remove what was built; make distclean also removes $(VENV)"

demo: $(VENV)/.installed-progress
	$(BIN)/python examples/clinc150_intents.py

# One BLAS thread a process: the processes that run tests would fight for the cores.
test quality chaos mutation: export OMP_NUM_THREADS = 1
# Dozens of processes import the package, which is to be compiled once.
test quality chaos mutation: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile \
		--no-loadscope-reorder --durations=25 $(PYTEST_ARGS)

quality: $(VENV)/.installed-test
	cd tests && $(abspath $(BIN))/python -m quality $(QUALITY_ARGS)

chaos: $(VENV)/.installed-test
	cd tests && $(abspath $(BIN))/python -m chaos --fits $(N) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

mutation: $(VENV)/.installed-mutation
	cd tests && $(abspath $(BIN))/python -m mutation $(PACKAGE) --mutants $(MUTANTS) \
		$(if $(SEED),--seed $(SEED)) $(MUTATION_ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

bench: $(VENV)/.installed-bench
	cd asv_bench && $(abspath $(BIN))/python -m peers.linear --rows $(ROWS)
	cd asv_bench && $(abspath $(BIN))/asv machine --yes > /dev/null
	cd asv_bench && $(abspath $(BIN))/asv run --python=same --quick --show-stderr

lint: $(VENV)/.installed-lint
	$(BIN)/lint-imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "$(PYTHON) is not Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -m venv "$(VENV)" \
	|| { rm -rf "$(VENV)"; echo "No virtual environment: on Debian, install python3-venv"; exit 1; }

# One stamp per set of extras; a change of the requirements installs them anew.
$(VENV)/.installed-%: setup.cfg pyproject.toml | $(BIN)/python
	@echo "Installing dask_ma[$*] into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]" \
		$(PACKAGES-$*)
	@touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .import_linter_cache .coverage* \
		docs/_build docs/auto_examples docs/generated docs/sg_execution_times.rst \
		asv_bench/env asv_bench/html asv_bench/results asv_bench/peers/results
	find . -path "./$(VENV)" -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean
	rm -rf "$(VENV)"
