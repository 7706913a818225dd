# Every command makes its own environment first (environment/install.py); that takes no time when nothing changed.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Where the shell turns bytecode off, every process that a test starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

SEED ?= 0
STEPS ?=
HELDOUT ?=
OUT ?=
EXAMPLE ?=
SEEDS ?= 0
ARGS ?=
# tests/conftest.py says what runs beside what.
TWO_AT_A_TIME := -n 2 --dist loadscope
BENCH ?= $(filter-out compare frameworks proof,$(patsubst benchmarks/%/__main__.py,%,$(wildcard benchmarks/*/__main__.py)))

.PHONY: help setup quickstart test test-fast test-slow bench check format doctor proof crewai frameworks docs screenshots clean

help:
	@echo 'make quickstart [SEED=0] [STEPS=] [HELDOUT=] [OUT=]   watch a real agent learn; writes runs/.../report.html'
	@echo 'make test [ARGS="-k words"]                           all tests, with real engines and a tiny model'
	@echo 'make test-fast [ARGS="-k words"]                      those that start no program and take no seconds'
	@echo 'make test-slow [ARGS="tests/loop/test_team.py"]       the tests that take too long for make test'
	@echo 'make proof [EXAMPLE="search code"] [SEEDS=0,1,2]      train examples, held-out tasks before and after; docs/proof.md'
	@echo 'make bench [BENCH=loop]                               benchmarks; each prints a table'
	@echo 'make crewai                                           CrewAI adapter and example, in .venv-crewai'
	@echo 'make frameworks [ARGS="--only agno_agent"]            frameworks as they are installed; writes docs/frameworks.md'
	@echo 'make docs                                             the documentation as a site, with the API; build/site'
	@echo 'make screenshots                                      pictures of the dashboard for docs/ (needs chromium)'
	@echo 'make check                                            ruff, import-linter and pyright; make format mends'
	@echo 'make doctor                                           check interpreter, packages, memory, ports and model'
	@echo 'make setup                                            only make .venv (every command does it by itself)'
	@echo 'make clean                                            remove .venv and caches; runs/ stays'

# The environment's own interpreter starts faster than a version manager's; -S is enough for the standard library.
setup:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -S environment/install.py; \
	elif command -v $(PYTHON) >/dev/null; then $(PYTHON) environment/install.py; \
	else echo 'set-up failed: there is no $(PYTHON) on PATH: install Python 3.11 and run it again' >&2; exit 1; fi

quickstart: setup
	@$(BIN)/lightning-trainer quickstart --seed $(SEED) $(if $(STEPS),--steps $(STEPS)) \
	    $(if $(HELDOUT),--heldout $(HELDOUT)) $(if $(OUT),--out "$(OUT)")

test: setup
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	    echo 'left out: the dashboard in a real browser; apt-get install chromium gets it'
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	    echo 'left out: the store on PostgreSQL; apt-get install postgresql gets it'
	$(BIN)/python -m pytest -m "not slow and not gpu" $(TWO_AT_A_TIME) $(ARGS)

test-fast: setup
	$(BIN)/python -m pytest --fast --durations=20 --durations-min=2 $(TWO_AT_A_TIME) $(ARGS)

test-slow: setup
	@command -v chromedriver >/dev/null || \
	    echo 'left out: MiniWoB++ in a real browser; apt-get install chromium chromium-driver gets it'
	$(BIN)/python -m pytest -m "slow and not gpu" $(ARGS)

proof: setup
	$(BIN)/python -m benchmarks.proof $(EXAMPLE) --seeds $(SEEDS) --write docs/proof.md $(ARGS)

bench: setup
	@set -e; for name in $(BENCH); do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name" $(ARGS); done

# Of every page with ARGS="--out FOLDER"; without it the few that the documentation shows.
screenshots: setup
	$(BIN)/python -m benchmarks.dashboard.screenshots $(ARGS)

# CrewAI cannot share our environment: it wants openai < 3 and pydantic < 2.13.
.venv-crewai/installed: environment/crewai-py311.txt | setup
	@echo 'set-up: CrewAI into .venv-crewai ...'
	@$(BIN)/python -m venv --clear .venv-crewai
	@.venv-crewai/bin/python -m pip install --quiet --disable-pip-version-check --no-input --requirement $<
	@touch $@

crewai: .venv-crewai/installed
	@printf '%s\n' "$(CURDIR)" "$(CURDIR)/instrumentation" "$(CURDIR)/adapters" \
	    > .venv-crewai/lib/python3.11/site-packages/lightning.pth
	.venv-crewai/bin/python -m pytest --confcutdir=tests/adapters -p no:cacheprovider tests/adapters/test_crewai.py $(ARGS)
	$(BIN)/python -m pytest tests/loop/test_runs.py -k crewai

# In environments of their own: these requirements exclude each other. Without npm the rows of Node's packages say so.
frameworks: setup
	@$(BIN)/python environment/frameworks.py
	$(BIN)/python -m benchmarks.frameworks --write docs/frameworks.md $(ARGS)

# MkDocs in an environment of its own; it reads the code and does not import it.
.venv-docs/installed: environment/docs-py311.txt | setup
	@echo 'set-up: MkDocs into .venv-docs ...'
	@$(BIN)/python -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --no-input --requirement $<
	@touch $@

docs: .venv-docs/installed
	@.venv-docs/bin/python environment/site.py

# At Node's own limit of 4 GB, pyright empties its caches again and again, which doubles its time.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	NODE_OPTIONS="--max-old-space-size=8192 $$NODE_OPTIONS" $(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doctor: setup
	@$(BIN)/lightning-trainer doctor

clean:
	rm -rf .venv .venv-crewai .venv-docs .venv-environments .venv-frameworks .venv-frameworks-* .bench-peers .bench-peer-transitions .bench-peer-trl .bench-trl .pytest_cache .ruff_cache environment/.ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
