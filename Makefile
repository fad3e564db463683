# What a developer runs; CONTRIBUTING.md has the table. Needs make, Python >= 3.11 and pip only.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
BENCH_STAMP := $(VENV)/.bench-setup-done

.DEFAULT_GOAL := help
.PHONY: help setup bytecode demo test nightly model bench-setup bench lint clean

help:
	@echo "make setup        make $(VENV): the package in editable mode and the development tools"
	@echo "make demo         analyse Python's own library: threads, ProcessPoolExecutor, mpsched"
	@echo "make test         the tests, without those marked slow"
	@echo "make nightly      all tests"
	@echo "make model        search the models of the protocols with SPIN, if it is installed"
	@echo "make lint         ruff, mypy --strict, import layers"
	@echo "make bench-setup  install the pools that the benchmarks compare with"
	@echo "make bench        the benchmarks"
	@echo "make clean        remove what these commands made"

setup: $(STAMP) bytecode

# One stamp per list of dependencies: nothing is installed again until pyproject.toml changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "mpsched needs Python 3.11 or newer, but %s is %d.%d. Name another: make PYTHON=python3.12 ..." % (sys.executable, v[0], v[1]))'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

# An editable install compiles nothing. Where PYTHONDONTWRITEBYTECODE is set, as in many containers,
# each worker would compile the package anew at its start.
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q mpsched

demo: bytecode
	$(BIN)/python -m examples.stdlib_report

test: bytecode
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# Slow tests take minutes on purpose, so a hang is called a hang later.
nightly: bytecode
	$(BIN)/python -m pytest -o faulthandler_timeout=900 $(ARGS)

model: $(STAMP)
	@$(BIN)/python -m tests.model.spin

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-setup: $(BENCH_STAMP)

$(BENCH_STAMP): pyproject.toml $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $@

bench: $(BENCH_STAMP) bytecode
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache htmlcov .coverage .coverage.*
	find mpsched tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
