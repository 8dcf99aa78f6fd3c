# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-slow test-scale torture faults damage fuzz forgeries threads stores clusters budgets readers invariance reliability lint format docs numbers clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# One stamp for each set of dependencies: a target installs only what it uses. Stamps are renewed when
# pyproject.toml changes, so a stale environment is never used.
$(VENV)/installed-package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed: $(VENV)/installed-package
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed-package
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

demo: $(VENV)/installed-package  ## build an index of real SIFT out of core, query it, compare with exact search
	$(BIN)/python -m aggtree.jobs.demo --directory demo

# worksteal: neighbouring tests, which share fixtures, stay in one process as long as there is enough to do.
test: $(VENV)/installed  ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# Without the JIT kernels are plain Python, so that their lines are counted too; primitives are emulated.
coverage: $(VENV)/installed  ## run the tests without the JIT at small sizes and print which share of lines they reach
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest --cov --cov-report=term:skip-covered \
		--numprocesses auto --maxprocesses 4 --dist worksteal

test-slow: $(VENV)/installed  ## tests that take minutes
	$(BIN)/python -m pytest -m slow --timeout 3600

test-scale: $(VENV)/installed  ## 20 million vectors under 1 GiB
	$(BIN)/python -m pytest -m scale --timeout 14400

# Tests that count: minutes each, a line of counts, a record in bench/results/reliability.jsonl. WORK=/dev/shm,
# a file system in memory, makes them several times as fast.
LONG = cd tests && PYTHONPATH=.. ../$(BIN)/python -m reliability $(if $(WORK),--work $(WORK))

torture: $(VENV)/installed  ## builds killed 200 times at random and resumed, bytes compared
	$(LONG) kills

faults: $(VENV)/installed  ## a full and a failing disk, and SIGTERM, at every single operation of a build
	$(LONG) faults

damage: $(VENV)/installed  ## indexes cut at every 4 KiB and 2,400 bits of them changed
	$(LONG) damage

fuzz: $(VENV)/installed  ## 100,000 spoiled files for all readers
	$(LONG) fuzz

forgeries: $(VENV)/installed  ## 5,400 indexes forged under checksums that match
	$(LONG) forgeries

threads: $(VENV)/installed  ## 1,000,000 answers to 16 threads that share an index, refresh and close it
	$(LONG) threads

stores: $(VENV)/installed  ## an object store that answers 500, 503, nothing, or half, at every fifth request
	$(LONG) stores

clusters: $(VENV)/installed  ## Dask workers and schedulers frozen, killed, restarted, shared and too small
	$(LONG) clusters

budgets: $(VENV)/installed  ## builds of long vectors and of many or wide dictionaries with the smallest budgets
	$(LONG) budgets

readers: $(VENV)/installed  ## 8 processes searching for a minute while the index is rebuilt 20 times
	$(LONG) readers

invariance: $(VENV)/installed  ## 300 cases of each change of data that must not change recall
	$(LONG) invariance

reliability: torture faults damage fuzz forgeries threads stores clusters budgets readers invariance  ## all of the above that count

lint: $(VENV)/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p aggtree

format: $(VENV)/installed  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The variable hides a notice that Material for MkDocs prints about its successor; it does not concern the pages.
docs: $(VENV)/installed-docs  ## build the documentation into site/; a warning is an error
	$(BIN)/python docs/command_line_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# About 23 minutes on two quiet cores. The other figures of docs have commands of their own, on their pages.
numbers: $(VENV)/installed  ## measure and write the README's figures; DATA=DIR holds photosift500k_*
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m bench recall_time --data $(DATA)
	for bytes in 8 16; do \
		$(BIN)/python -m bench quantizer --data $(DATA) --bytes $$bytes --rows 20000 --methods da,rq,pq,opq training; done
	$(BIN)/python -m bench numbers

clean:  ## remove what was built here, the demo's index included
	rm -rf $(VENV) demo build dist site *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
