# Two commands: `make demo` (the map of six architectures, minutes on a CPU) and `make test` (everything that must hold).
# `make map` writes results/map.html, the page of all committed records, in half a minute.
# Each sets up .venv the first time, and again only when pyproject.toml or constraints.txt changed.
# `make stamp` writes the commit into .commit, for records of a copy that goes without .git to another machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo map test types tests stamp

demo: .venv/ready
	$(BIN)/recallmap run demo
	$(BIN)/recallmap table demo
	$(BIN)/recallmap dashboard demo

map: .venv/ready
	$(BIN)/recallmap dashboard results/records --output results/map.html --no-probe --title "The map: every architecture and task on record"

test: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --jobs=2 types tests

types:
	$(BIN)/mypy

# Tests of one file run in one process, which computes what they share once. Many start processes: the first one to import a
# module keeps its bytecode, also for who forbids that elsewhere, because to compile torch takes longer than to import it. Three
# processes for two cores, because tests that start a browser or a process of their own leave their core idle.
tests:
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

stamp:
	@commit=$$(git rev-parse HEAD) && changes=$$(git status --porcelain -uno) && echo "$$commit$${changes:++}" > .commit
	@echo ".commit: $$(cat .commit)"

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	mkdir -p .venv/src && ln -sfn ../.. .venv/src/recallmap
	touch .venv/ready
