# rollbus: every target does its own set-up. `make help` lists them.

SHELL := /bin/bash
PYTHON_BIN := .venv/bin
FOLDERS := rollbus schemas runtime producers streams consumers trainer
export PYTHONUNBUFFERED := 1
# Compiled modules are kept: the tests start hundreds of Python processes, and one without them takes three times as long.
export PYTHONDONTWRITEBYTECODE :=
# Mutated requests for each port, and a tenth of the mutated records, of `make faults`.
FUZZ ?= 100000
# One thread per process: the tests and the demo run several processes side by side.
export OMP_NUM_THREADS ?= 1
OPENAI_VERSIONS := 1.92.0 3.52.0
# Tests of services mostly wait, so they get more processes than there are processors.
PARALLEL := --no-loadscope-reorder -n
SERVICE_WORKERS ?= 4
QUICK := "not services and not slow and not faults"
PYTHONS ?= .venv/bin/python
FAST_WORKERS ?= 2
# Folders whose tests run on Python 3.11 with each of these versions, and not once more with the locked one.
OF_OPENAI := $(addprefix tests/producers/,capture episode turns proxy)
# Every process imports every test module, so the frameworks, of which each takes seconds to import, get one of their own,
# and beside the tests of services so do those that need torch: with it a process needs 33 s and 1.3 GB until it begins,
# without it 14 s and 0.3 GB.
FRAMEWORKS := tests/producers/integrations tests/agents tests/nemo
MODELS := tests/demo/test_warm_start.py tests/trainer/art_server tests/trainer/grpo tests/upgrade tests/hostile/test_checkpoints.py tests/hostile/test_texts_that_grow.py

.DEFAULT_GOAL := help
.PHONY: help setup kafka model demo demo-game finetune-demo test test-java test-oldest test-openai test-ui test-clients test-fast test-frameworks test-models check-frameworks check-models test-311 faults fuzz bench-analytics bench-sink bench-capture bench-capture-throughput bench-delivery bench-replay bench-replay-week bench-streams bench-streams-latency bench-streams-scale simulate-scale bench-trainer bench-model bench-staleness gpu-check audit dist docs check format lint types clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | column -t -s @

setup: ## Fetch and install whatever is missing (about 3 GB the first time)
	@scripts/setup

model: setup ## Fetch SmolLM2 into the user's cache, once (93 MB, converted to 540 MB)
	@$(PYTHON_BIN)/rollbus model fetch smollm2 > /dev/null

kafka: setup ## Fetch Kafka's jars (part of setup)

demo: model ## Watch a language model learn a job from late verdicts in its traffic (about 25 minutes)
	@$(PYTHON_BIN)/rollbus demo

demo-game: setup ## Watch a tiny model get better at tic-tac-toe from its own games (about 10 minutes)
	@$(PYTHON_BIN)/rollbus demo --job game

finetune-demo: setup ## Finetune tic-tac-toe from a NeMo configuration, killed and resumed on the way (about 7 minutes)
	@$(PYTHON_BIN)/python -m benchmarks.finetuning.prove

test: model ## Run every test, on real Kafka, ClickHouse's engine and ART
	@mkdir -p .make/results
	@$(MAKE) --no-print-directory -k test-frameworks test-models test-311 test-openai test-java > .make/results/others 2>&1 & others=$$!; trap 'kill $$others' INT TERM; \
	$(PYTHON_BIN)/pytest $(PARALLEL) $(SERVICE_WORKERS) $(addprefix --ignore=,$(FRAMEWORKS) $(MODELS) tests/faults) | tee .make/results/main; failed=$${PIPESTATUS[0]}; \
	wait $$others || { failed=1; cat .make/results/others; }; \
	echo; echo "Frameworks, models, Python 3.11, openai's versions, Java; then all else on Python 3.12:"; \
	grep -hE '^=.* (passed|failed|error)|^openai|Tests run:.*Skipped: [0-9]+$$' .make/results/{others,main}; exit $$failed

test-311: setup ## Run the tests of the core, the producers and the streams on Python 3.11
	@UV_PROJECT_ENVIRONMENT=.venv-311 VIRTUAL_ENV= $(PYTHON_BIN)/uv sync -q --frozen --python 3.11 --extra streams --extra proxy --no-editable --reinstall-package rollbus
	@.venv-311/bin/python -m pytest -m $(QUICK) tests/schemas tests/producers tests/streams \
	  $(addprefix --ignore=,tests/producers/integrations $(OF_OPENAI))

test-openai: setup ## Run the recorder's tests with the oldest and the newest openai package
	@for version in $(OPENAI_VERSIONS); do \
	  environment=.venv-openai-$$version; echo "openai $$version"; \
	  [ -x $$environment/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python 3.11 $$environment; \
	  VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python $$environment/bin/python pytest pytest-asyncio pytest-timeout hypothesis opentelemetry-api ".[proxy]" "openai==$$version" && \
	  $$environment/bin/python -m pytest -m "not services" $(OF_OPENAI) || exit 1; \
	done

test-oldest: setup ## Run the frameworks' tests with the oldest versions that the extras allow (about 2 minutes)
	@[ -x .venv-oldest/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-oldest
	@printf '%s\n' "langchain>=1" "smolagents[openai]>=1.23" "pytest>=9" "pytest-asyncio>=1.2" "pytest-timeout>=2.4" "hypothesis>=6.140" | \
	  VIRTUAL_ENV= $(PYTHON_BIN)/uv pip compile -q --python .venv-oldest/bin/python --resolution lowest-direct \
	  $(addprefix --extra=,cli langchain llama-index adk openai-agents litellm) pyproject.toml - -o .make/oldest.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip sync -q --python .venv-oldest/bin/python .make/oldest.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-oldest/bin/python --no-deps -e .
	@.venv-oldest/bin/python -m pytest -o filterwarnings=default --disable-warnings --ignore=tests/producers/integrations/test_langfuse_pages.py \
	  tests/agents tests/producers/integrations

test-java: setup ## Read and write the wire format with Apache Avro for Java (Maven)
	@mvn -B -Dstyle.color=never -f tests/java/pom.xml test | grep -E '^\[(INFO|ERROR)\] Tests run|BUILD|ERROR'

test-ui: setup ## Look at `rollbus ui` with a real Chromium, light and dark (about a minute)
	@command -v "$${CHROMIUM:-chromium}" > /dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; } > .make/chromium.log 2>&1
	@mkdir -p .make/ui && cp tests/ui/package.json tests/ui/package-lock.json .make/ui/ && npm ci --prefix .make/ui --no-audit --no-fund --silent
	@$(PYTHON_BIN)/python -m tests.ui.run .make/ui
	@$(PYTHON_BIN)/pytest -q tests/hostile/rebinding.py

test-clients: setup ## Use the local ClickHouse endpoint with JavaScript, Go and JDBC clients, ibis and SQLAlchemy (about a minute)
	@mkdir -p .make/clients && cp tests/clients/package.json tests/clients/package-lock.json .make/clients/ && npm ci --prefix .make/clients --no-audit --no-fund --silent
	@[ -x .venv-clients/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-clients
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-clients/bin/python -r tests/clients/bi/requirements.txt
	@$(PYTHON_BIN)/python -m tests.clients.run .make/clients .venv-clients/bin/python

test-fast: setup ## Run the tests that need no service, model or framework, and little time
	@$(PYTHON_BIN)/pytest $(PARALLEL) $(FAST_WORKERS) -m $(QUICK) \
	  --ignore tests/services --ignore tests/faults $(addprefix --ignore=,$(FRAMEWORKS) $(MODELS))

test-frameworks: setup
	@$(PYTHON_BIN)/pytest $(FRAMEWORKS)

test-models: model
	@$(PYTHON_BIN)/pytest $(MODELS)

check-frameworks: setup
	@$(PYTHON_BIN)/pytest -m $(QUICK) $(FRAMEWORKS)

check-models: model
	@$(PYTHON_BIN)/pytest -m $(QUICK) $(MODELS)

faults: setup ## Break workers, brokers, disks and clocks at points that a new seed draws, and check every record (about 15 minutes)
	@$(PYTHON_BIN)/pytest -m faults tests/faults tests/streams/simulation tests/streams/stages/delivery/evidence \
	  tests/nemo/test_cut_anywhere.py tests/services/art/test_gpu_check.py

fuzz: setup ## Send 100,000 mutated requests to each server and read a million mutated records (FUZZ=100000)
	@ROLLBUS_FUZZ=$(FUZZ) $(PYTHON_BIN)/pytest -n0 -s --show-capture=no tests/hostile/test_fuzz.py

bench-streams: setup ## Measure assembly beside Quix Streams, plain Faust and a bare aiokafka loop (about 5 minutes)
	@[ -x .venv-bench/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-bench
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench/bin/python -r benchmarks/streams/requirements.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench/bin/python --no-deps -e .
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.streams.run .venv-bench/bin/python

bench-streams-latency: setup ## Measure how long a group takes from its last event (about 2½ minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.streams.latency

bench-replay: setup ## Measure a replay beside reading and decoding alone, and beside the live worker (about 5 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.replay.run

bench-replay-week: setup ## Measure a replay of the demo's traffic: times real time on a core, and what further cores give (about 3 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.replay.week

bench-delivery: setup ## Measure the choice of a version, how soon traffic is taken back, simulated canaries, and the intervals of estimates (about 45 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.delivery.routing
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.delivery.latency
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.delivery.late 400
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.delivery.run 10000
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.delivery.coverage

bench-streams-scale: setup ## Measure two workers, many open episodes, memory and restoring (about 2 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.streams.scale

simulate-scale: setup ## Simulate clusters for 10⁴, 10⁵ and 10⁶ events/s from costs measured here, with their error (about 10 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.scale.run

bench-trainer: setup ## Measure the trainer beside TRL, a plain loop and transformers' generate (about 5 minutes, 3 GB the first time)
	@[ -x .venv-bench-trainer/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-bench-trainer
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench-trainer/bin/python -r benchmarks/trainer/requirements.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench-trainer/bin/python --no-deps -e .
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.trainer.run .venv-bench-trainer/bin/python

bench-model: model ## Measure SmolLM2's sampler and GRPO step beside transformers and TRL (about 10 minutes, 3 GB the first time)
	@[ -x .venv-bench-trainer/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-bench-trainer
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench-trainer/bin/python -r benchmarks/trainer/requirements.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench-trainer/bin/python --no-deps -e .
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.model.run .venv-bench-trainer/bin/python $(if $(LLAMA_SERVER),--llama-server $(LLAMA_SERVER))

bench-staleness: setup ## Measure what lag costs, with and without correction (about 15 minutes, resumable)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.trainer.staleness

bench-capture: setup ## Measure recording beside Langfuse and OpenTelemetry: the caller's time, sizes, imports, throughput (about 5 minutes)
	@[ -x .venv-bench-capture/bin/python ] || VIRTUAL_ENV= $(PYTHON_BIN)/uv venv -q --python $(PYTHON_BIN)/python .venv-bench-capture
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --prerelease=allow --python .venv-bench-capture/bin/python -r benchmarks/capture/requirements.txt
	@VIRTUAL_ENV= $(PYTHON_BIN)/uv pip install -q --python .venv-bench-capture/bin/python --no-deps -e .
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.capture.run .venv-bench-capture/bin/python

bench-capture-throughput: setup ## Record 1,000 turns a second for a minute into a broker: drops, CPU per turn (75 seconds)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.capture.throughput

bench-analytics: setup ## Measure the sink beside bare inserts, and every question over a million trajectories (about 8 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.analytics.run

bench-sink: setup ## Measure the sink alone beside bare inserts of the same blocks (about 3 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.analytics.run 0

gpu-check: model ## Try on this machine's GPU what docs/gpu.md says, and write one report (DEVICE=cpu: what a CPU can; about 10 minutes)
	@PYTHONPATH=. $(PYTHON_BIN)/python -m benchmarks.gpu.check --device $(or $(DEVICE),cuda)

audit: setup ## Look for known vulnerabilities in the locked packages, and write a CycloneDX bill of materials
	@scripts/audit

dist: setup ## Make the files of a release in dist/: sdist, wheels with and without C, bill of materials, checksums
	@PYTHONS="$(PYTHONS)" scripts/dist

docs: setup ## Build the documentation site into site/; a warning is an error
	@UV_PROJECT_ENVIRONMENT=.venv-docs VIRTUAL_ENV= $(PYTHON_BIN)/uv sync -q --frozen --only-group docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q --strict && echo "the site is in site/index.html"

check: setup ## Format, lint, types and the fast tests, beside each other
	@$(MAKE) --no-print-directory -j4 --output-sync=target lint types check-frameworks check-models test-fast

format: setup ## Format the code
	@$(PYTHON_BIN)/ruff format . && $(PYTHON_BIN)/ruff check --fix .

lint: setup
	@$(PYTHON_BIN)/ruff format --check . && $(PYTHON_BIN)/ruff check .

# mypy sees one package tree: links to the folders, each where it is imported.
types: setup
	@rm -rf .make/types && mkdir -p .make/types/rollbus
	@cd .make/types/rollbus && ln -s ../../../rollbus/* . && ln -s $(patsubst %,../../../%,$(filter-out rollbus,$(FOLDERS))) .
	@MYPYPATH=.make/types $(PYTHON_BIN)/mypy -p rollbus -p tests

clean: ## Remove what was built or fetched here (not the demo's data)
	@rm -rf .venv .venv-311 .venv-bench .venv-bench-* .venv-openai-* .venv-oldest .rollbus/bench-* .venv-docs .make build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
