# Everything runs from .venv; `make setup` builds it once and again only when its inputs change.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready
NATIVE_READY := .venv/.native-ready
NODE_READY := viewer/node_modules/.ready
PIP_INSTALL := $(BIN)/python -m pip install -qq --constraint constraints.txt

.PHONY: setup demo test bench accuracy lint viewer viewer-check browser docs api corpus fuzz soak clean

setup: $(READY) $(NATIVE_READY)

# torch is asked for by itself and by its exact version, so that pip takes that wheel wherever it
# is configured to look; the rest then finds torch already in place. An older pip knows no groups.
$(READY): pyproject.toml constraints.txt
	@echo "Installing into .venv; the first time this takes a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) pip torch==2.13.0
	$(PIP_INSTALL) --editable '.[torch,all]' --group dev
	@touch $@

# Without a compiler Clew says so in a line and records with its python engine.
$(NATIVE_READY): $(READY) $(wildcard src/clew/native/sources/*)
	@$(BIN)/python -m clew build || true
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

# The big run comes last, so that its count is the last line.
test: setup browser
	@scripts/test_no_torch.sh
	@scripts/test_s3.sh
	@WORKERS=$(WORKERS) scripts/test_native.sh
	@$(BIN)/python -m pytest -q -n $(WORKERS)

bench: setup browser
	@$(BIN)/python -m bench

# Faults planted in real architectures: how often the answers about them are right. VERBOSE=-v
# prints what was said where one is not.
accuracy: setup
	@$(BIN)/python -m accuracy $(VERBOSE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

viewer: $(NODE_READY)
	@cd viewer && npm run --silent build

viewer-check: $(NODE_READY)
	@cd viewer && npm run --silent check-built

# Nothing of these packages is in what users install; their install scripts are not needed.
$(NODE_READY): viewer/package.json viewer/package-lock.json
	@command -v npm >/dev/null || { echo "Node 20 or later with npm is needed to build and test the viewer"; exit 1; }
	@cd viewer && npm ci --silent --ignore-scripts
	@touch $@

browser: $(NODE_READY)
	@scripts/browser.sh

docs: setup
	@$(BIN)/python -m pytest -q tests/docs

# Minutes: twenty thousand damaged traces, read in every way. The tests take a hundred.
fuzz: setup
	@$(BIN)/python -m tests.mutations

# Half an hour, most of it to build: the native engine with sanitizers, under the programs of its
# tests. SECONDS=300 runs them longer.
SECONDS ?= 60
soak: setup
	@scripts/soak.sh $(SECONDS)

# Only after a change to its programs or to the format: the traces are committed.
corpus: setup
	@$(BIN)/python -m tests.corpus.make

api: setup
	@$(BIN)/python scripts/api.py

clean:
	rm -rf .venv .venv-3.* viewer/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
