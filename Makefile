# Everything runs inside .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: help train serve test test-slow faults fuzz exports check audit format figures lock package docs clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

train: $(VENV)/.installed  ## Train a CapsNet on the embedded digits, offline, in about a minute
	$(BIN)/torchcaps train

serve: $(VENV)/.serve  ## Open the capsule explorer in a browser at http://127.0.0.1:8765
	$(BIN)/torchcaps serve

test: $(VENV)/.dev  ## Run the tests but the slow ones, with coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --cov --cov-report=term:skip-covered --cov-fail-under=95

test-slow: $(VENV)/.dev  ## Run the slow tests, of more than ten seconds each
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

faults: $(VENV)/.dev  ## Kill runs, spoil checkpoints, fill disks, and see that nothing is lost (minutes)
	$(BIN)/python tests/faults/campaign.py

exports: $(VENV)/.dev  ## Export every shipped model to ONNX and compare 200 answers of each
	TORCHCAPS_EVERY_EXPORT=1 $(BIN)/python -m pytest tests/exchange -k "shipped or compiled" -rP

check: $(VENV)/.dev docs  ## Format, lint, types, import layers, documentation, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_house.py
	$(BIN)/python .ci/audit

docs: $(VENV)/.dev  ## Build the documentation into site/, and fail on every broken link and wrong docstring
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/.dev  ## Put the code into its standard form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

figures: $(VENV)/.installed  ## Make every picture of the README and the docs again
	$(BIN)/python docs/make_figures.py

fuzz: $(VENV)/.dev  ## Put 100,000 damaged files through every parser (CASES= for another number)
	-$(PIP) --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/campaign.py --cases $(or $(CASES),100000) --out benchmarks/results/fuzz.csv

audit: $(VENV)/.dev  ## Ask for known vulnerabilities of what requirements.lock names
	$(BIN)/python .ci/audit

lock: $(VENV)/.dev  ## Write requirements.lock again: constraints.txt with checksums
	.ci/lock

package: $(VENV)/.dev  ## Build sdist and wheel, and use the wheel in an empty environment
	$(BIN)/python .ci/package

clean:  ## Remove what was built, but not runs
	rm -rf $(VENV) build dist site .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/torchcaps/ops/_native*.[ch])
	@echo "installing torchcaps into $(VENV) (a few minutes the first time)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchcaps needs Python 3.10 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.serve: $(VENV)/.installed
	$(PIP) --editable '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@
