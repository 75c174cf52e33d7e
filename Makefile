# rollbus: every target does its own set-up. `make help` lists them, with those of tests/Makefile and benchmarks/Makefile.

include scripts/common.mk

FOLDERS := rollbus schemas runtime producers streams consumers trainer
# Mutated requests for each port, and a tenth of the mutated records, of `make fuzz`.
FUZZ ?= 100000
PYTHONS ?= .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup model demo demo-game test faults fuzz audit dist docs check format lint types package-tree clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1@\2/p' Makefile tests/Makefile benchmarks/Makefile | column -t -s @

setup: ## Fetch and install whatever is missing (about 3 GB the first time)
	@scripts/setup

model: setup ## Fetch SmolLM2 into the user's cache, once (93 MB, converted to 540 MB)
	@$(PYTHON_BIN)/rollbus model fetch smollm2 > /dev/null

demo: model ## Watch a language model learn a job from late verdicts in its traffic (about 25 minutes)
	@$(PYTHON_BIN)/rollbus demo

demo-game: setup ## Watch a tiny model get better at tic-tac-toe from its own games (about 10 minutes)
	@$(PYTHON_BIN)/rollbus demo --job game

test: setup ## Run every test, on real Kafka, ClickHouse's engine and ART
	@$(MAKE) --no-print-directory -f tests/Makefile test

test-%: setup
	@$(MAKE) --no-print-directory -f tests/Makefile $@

bench-% gpu-%: setup
	@$(MAKE) --no-print-directory -f benchmarks/Makefile $@

faults: setup ## Break workers, brokers, disks and clocks at points that a new seed draws, and check every record (about half an hour)
	@$(PYTHON_BIN)/pytest -m faults tests/faults tests/services tests/streams/simulation tests/streams/stages/delivery/evidence \
	  tests/nemo/test_cut_anywhere.py

fuzz: setup ## Send 100,000 mutated requests to each server and read a million mutated records (FUZZ=100000)
	@ROLLBUS_FUZZ=$(FUZZ) $(PYTHON_BIN)/pytest -n0 -s --show-capture=no tests/hostile/test_fuzz.py

audit: setup ## Look for known vulnerabilities in the locked packages, and write a CycloneDX bill of materials
	@scripts/audit

dist: setup ## Make the files of a release in dist/: sdist, wheels with and without C, bill of materials, checksums
	@PYTHONS="$(PYTHONS)" scripts/dist

docs: setup package-tree ## Build the documentation site into site/; a warning is an error
	@UV_PROJECT_ENVIRONMENT=.venv-docs VIRTUAL_ENV= $(PYTHON_BIN)/uv sync -q --frozen --only-group docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q --strict && echo "the site is in site/index.html"

check: setup ## Format, lint, types and the fast tests, at the same time
	@$(MAKE) --no-print-directory -j4 --output-sync=target lint types check-frameworks check-models test-fast

check-%: setup
	@$(MAKE) --no-print-directory -f tests/Makefile $@

format: setup ## Format the code
	@$(PYTHON_BIN)/ruff format . && $(PYTHON_BIN)/ruff check --fix .

lint: setup
	@$(PYTHON_BIN)/ruff format --check . && $(PYTHON_BIN)/ruff check .

# mypy and the reference of the docs see one package tree: links to the folders, each where it is imported.
package-tree:
	@rm -rf .make/types && mkdir -p .make/types/rollbus
	@cd .make/types/rollbus && ln -s ../../../rollbus/* . && ln -s $(patsubst %,../../../%,$(filter-out rollbus,$(FOLDERS))) .

types: setup package-tree
	@MYPYPATH=.make/types $(PYTHON_BIN)/mypy -p rollbus -p tests -p benchmarks

clean: ## Remove what was built or fetched here (not the demo's data)
	@rm -rf .venv .venv-311 .venv-bench .venv-bench-* .venv-openai-* .venv-oldest .venv-newest .venv-readers .venv-tinker .venv-vllm .venv-adk .venv-nat-* .rollbus/bench-* .venv-docs .make build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
