# Two commands do everything on a fresh machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check lint types layers docs bench campaign clean

demo: .venv/.installed  ## train, kill three times, resume bit for bit, draw demo/loss.png
	$(BIN)/python examples/demo.py

test: .venv/.installed  ## the whole default test suite
	$(BIN)/python -m pytest

check: lint types layers docs test  ## what CI runs

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy

layers: .venv/.installed
	$(BIN)/lint-imports

docs: .venv/.installed
	$(BIN)/python -m pytest -q -p no:randomly tests/docs

bench: .venv/.peers  ## timed pieces, and the comparison with the peers; BENCH=--quick for a look
	@mkdir -p .benchmarks
	$(BIN)/python -m benchmarks.compare --json .benchmarks/compare.json --png .benchmarks/compare.png $(BENCH)
	$(BIN)/python -m pytest benchmarks -o addopts= --benchmark-only

campaign: .venv/.installed  ## the long tests
	$(BIN)/python -m pytest -m slow -o timeout=3600

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

.venv/.peers: .venv/.installed
	$(PIP) install -q -c constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
