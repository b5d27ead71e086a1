# Every target sets up what it needs in .venv from the pinned requirements/constraints.txt; nothing is installed anywhere else.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
CONSTRAINTS := requirements/constraints.txt
# Relative, so that a path with a space does no harm; the second name is how newer pips constrain what builds a package.
export PIP_CONSTRAINT := $(CONSTRAINTS)
export PIP_BUILD_CONSTRAINT := $(CONSTRAINTS)
# Tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
SIMULATION_SEEDS ?= 500
SIMULATIONS ?= tests/simulation
# For each target of the fuzzer.
FUZZ_SECONDS ?= 60
# Not empty where `make simulate` comes behind test-long: its simulations are not run with the first seeds before.
SIMULATES_NEXT ?=
# Three processes for two cores, since a third of what tests take is waiting.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print((3 * (os.cpu_count() or 2) + 1) // 2)')
# Of test-interop and test-spark, whole files of tests each; 0 is one after the other. Each of Spark's takes one to two GB.
INTEROP_PROCESSES ?= 3
SPARK_PROCESSES ?= $(TEST_PROCESSES)

# What test-cluster does, beside what `make test` does of real processes: failures that take minutes ...
FAILURES := $(addprefix tests/cluster/test_,broker_failures.py controller_kill.py coordinator_kill.py fuzz.py isr_by_znode.py \
	log_directory_failures.py tiered_storage.py)
# ... and what mostly waits, for an interval or a time-out, or does not concern most changes (services, documented blocks), side by side.
WAITS := $(addprefix tests/cluster/test_,controller_move.py documented_commands.py documented_json.py documented_output.py documented_servers.py exactly_once.py floods_before_login.py hostile_connections.py \
	kafka_cluster_processes.py kafka_streams.py large_requests.py live_configs.py monitoring.py offsets_topic_deleted.py preferred_leaders.py \
	replication_throttle.py services.py stalled_directory.py supervisor.py unclean_election.py up_failures.py up_secure.py)

# pytest, and where .ci/run asks for it (BARNABAS_SECOND_TRY=1) a second try of what failed once and is not deterministic.
TRIED_PYTEST := $(BIN)/python -m tools.second_try

# Files that have something of make test-long, so that this collects no others: the dearest first.
LONG = $(shell sed -nE 's/^[0-9.]+ ([^:]+)::.*/\1/p' tests/support/long_tests.txt | awk '!seen[$$0]++')

# What make test-long and make simulate both run.
SIMULATED_TWICE := $(addprefix --deselect=tests/simulation/test_,cluster_plans.py::test_a_cluster_keeps_its_promises_under_each_plan \
	readers.py::test_readers_process_and_commit_exactly_what_they_mean_to \
	readers.py::test_the_readers_have_met_everything_that_is_to_be_survived)

BASE := $(VENV)/.base-installed
TEST := $(VENV)/.test-installed
INTEROP := $(VENV)/.interop-installed
DEMO := $(VENV)/.demo-installed
FUZZ := $(VENV)/.fuzz-installed
COVERAGE := $(VENV)/.coverage-installed
DOCS := $(VENV)/.docs-installed
# All tests and the product, compiled once while mypy has one core only: else each of the processes that share the tests does it.
COMPILED := $(VENV)/.tests-compiled
COVERAGE_REPORT := .cache/coverage
COVERED ?= tests/unit tests/fuzz tests/simulation
# pytest-cov reads where from, and coverage where to.
export COVERAGE_FILE := $(COVERAGE_REPORT)/data

.PHONY: help
help: ## Say what the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(BASE): pyproject.toml hatch_build.py $(CONSTRAINTS)
	@if [ -z "$(PYTHON)" ]; then echo "Barnabas needs Python 3.11 or newer: install it, or call make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "No virtual environment could be made: install Python's venv module (Debian: apt-get install python3-venv)" >&2; rm -rf $(VENV); exit 1; }
	@$(PIP) install --editable .
	@touch $@

$(TEST): $(BASE) requirements/test.txt
	@echo "Installing what the tests need, Spark among it (some 600 MB, once) ..."
	@$(PIP) install --no-compile --editable '.[spark]' -r requirements/test.txt
	@touch $@

$(INTEROP): $(TEST) requirements/interop.txt
	@echo "Installing what brings Apache Kafka and ZooKeeper (some 500 MB) ..."
	@$(PIP) install --no-compile -r requirements/interop.txt
	@touch $@

$(DEMO): $(BASE) requirements/demo.txt
	@echo "Installing Spark, a Kafka client and the flights of 2013 (some 600 MB, once) ..."
	@$(PIP) install --no-compile --editable '.[spark]' -r requirements/demo.txt
	@touch $@

$(FUZZ): $(TEST) requirements/fuzz.txt
	@$(PIP) install --no-compile -r requirements/fuzz.txt
	@touch $@

$(DOCS): $(BASE) requirements/docs.txt
	@$(PIP) install -r requirements/docs.txt
	@touch $@

$(COVERAGE): $(TEST) requirements/coverage.txt
	@$(PIP) install --no-compile -r requirements/coverage.txt
	@touch $@

.PHONY: run
run: $(DEMO) ## The main job: a year of flights through three brokers and a Spark pipeline, a broker is killed, every sum is checked
	@$(BIN)/python -m demo

# Simulations come first: whoever is done takes from the ends of what others still have, and there are the short ones.
.PHONY: test
test: BESIDE_TYPES = $(COMPILED)
test: lint ## Linters, types, and what is quick of units, simulations and tests with processes (some 7 minutes on 2 cores)
	@$(TRIED_PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m "not long" tests/simulation tests/fuzz tests/unit
	@$(TRIED_PYTEST) -n $(TEST_PROCESSES) $(addprefix --ignore=,$(FAILURES) $(WAITS)) tests/cluster

.PHONY: test-long
test-long: $(TEST) stubs ## The units and simulations that cost most, which make test leaves out: tests/support/long_tests.txt
	@$(TRIED_PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m long $(if $(SIMULATES_NEXT),$(SIMULATED_TWICE)) $(LONG)

.PHONY: test-clients
test-clients: $(INTEROP) ## Real Kafka clients in Python, Java, JavaScript, Go and C against three broker processes
	@$(BIN)/python -m tests.support.apache_kafka_jars
	@BARNABAS_ALL_CLIENTS=1 $(TRIED_PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder tests/clients

.PHONY: test-cluster
test-cluster: $(INTEROP) ## Failures of real processes: kill -9 of everything for minutes, full and slow disks, what waits
	@$(BIN)/python -m tests.support.apache_kafka_jars
	@BARNABAS_LONG_FAILURES=1 $(TRIED_PYTEST) -n $(TEST_PROCESSES) --no-loadscope-reorder $(FAILURES) $(WAITS) --timeout 900

.PHONY: test-spark
test-spark: $(TEST) ## Pipelines on Spark, and Spark's own Kafka source and sink, against three broker processes
	@$(BIN)/python -m tests.support.spark_archive
	@$(TRIED_PYTEST) -n $(SPARK_PROCESSES) --dist loadfile --no-loadscope-reorder tests/spark --timeout 900

.PHONY: test-console
test-console: $(TEST) ## The console in headless Chromium, where that is installed: each page while a broker dies, is replaced, comes back; what that costs
	@$(TRIED_PYTEST) tests/browser

.PHONY: test-oci
test-oci: $(TEST) ## The image of contrib/oci and its compose.yaml, where Debian's buildah, mmdebstrap and root are: built, run, killed
	@$(TRIED_PYTEST) tests/oci

.PHONY: test-interop
test-interop: $(INTEROP) ## Against Apache Kafka 3.9.1, ZooKeeper 3.8.4 and kazoo's own test suite
	@$(BIN)/python -m tests.support.apache_kafka_jars
	@if [ "$${BARNABAS_BY_DAY:-0}" != 1 ]; then $(BIN)/python -m tests.support.apache_kafka_jars 3.4.1; fi
	@$(BIN)/python -m tests.support.java_archives
	@$(TRIED_PYTEST) -n $(INTEROP_PROCESSES) --dist loadfile --no-loadscope-reorder tests/interop --timeout 900

.PHONY: test-suites
test-suites: $(INTEROP) ## Test suites of clients' authors, on brokers of ours and beside them on Apache Kafka 3.9.1 (SUITES="--suite NAME" for one)
	@$(BIN)/python -m tests.support.apache_kafka_jars
	@$(BIN)/python -m tests.suites.run $(SUITES)

.PHONY: simulate
simulate: $(TEST) ## All simulations over many more seeds (SIMULATION_SEEDS, 500)
	@BARNABAS_SIMULATION_SEEDS=$(SIMULATION_SEEDS) $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal $(SIMULATIONS) --timeout 1800

.PHONY: test-pythons
test-pythons: $(TEST) ## The unit tests on each of Python 3.11, 3.12 and 3.13 that is there (BARNABAS_PYTHONS names others)
	@$(BIN)/python -m tools.pythons -n $(TEST_PROCESSES) --dist worksteal tests/unit

.PHONY: fuzz
fuzz: $(FUZZ) ## Decoders of messages, records, files and znodes under a fuzzer, each for FUZZ_SECONDS (60)
	@$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

# There is a report whatever failed: hours are in it.
.PHONY: coverage
coverage: $(COVERAGE) ## Branches that unit tests and simulations run, by room; every line in .cache/coverage/html
	@mkdir -p $(COVERAGE_REPORT)
	@status=0; BARNABAS_SIMULATION_SEEDS=1 $(BIN)/pytest -p pytest_cov -n $(TEST_PROCESSES) --dist worksteal --cov=src/barnabas \
		--cov-branch --cov-report= --timeout 600 $(COVERED) || status=$$?; \
	$(BIN)/coverage json --quiet -o $(COVERAGE_REPORT)/coverage.json; \
	$(BIN)/coverage html --quiet -d $(COVERAGE_REPORT)/html; \
	$(BIN)/python -m tools.coverage_rooms $(COVERAGE_REPORT)/coverage.json; \
	exit $$status

.PHONY: nightly
nightly: ## What takes hours or has found least: more seeds, fuzzing, other Pythons, mutants, coverage (.ci/nightly says which)
	@.ci/nightly

.PHONY: mutants
mutants: $(TEST) ## Every fault that is put into brokers and clients: the simulations have to find each within 200 seeds
	@BARNABAS_ALL_MUTANTS=1 $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal tests/simulation -k "fault_that_is_put" --timeout 1800

.PHONY: bench
bench: $(INTEROP) ## Every benchmark, side by side with what it is compared to
	@$(BIN)/python -m benchmarks

.PHONY: check-wheel
check-wheel: $(TEST) ## The built wheel, installed into an empty environment, takes a record and gives it back
	@$(BIN)/python -m tools.release check

.PHONY: release
release: lint ## Dated changelog, version, checked archives, commit and tag: make release VERSION=0.1.0
	@if [ -z "$(VERSION)" ]; then echo "Say which: make release VERSION=0.1.0" >&2; exit 1; fi
	@$(BIN)/python -m tools.release "$(VERSION)"

# Without --quiet, with which MkDocs does not count warnings, and a broken link would pass.
.PHONY: docs
docs: $(DOCS) ## The docs as a site in build/site, to be read from disk or any web server; a link or anchor that leads nowhere fails
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: stubs
stubs: $(TEST)
	@$(BIN)/python -m barnabas.wire.stubs
	@$(BIN)/python -m barnabas.wire.generating

.PHONY: lint
lint: $(TEST) $(DOCS) stubs ## Format, lint, types, order of rooms and files, sizes, nothing ambient, commit subjects; links of the docs
	@$(MAKE) --no-print-directory -j 2 lint-types lint-rules docs $(BESIDE_TYPES)

# What cannot be collected is said by the run that follows.
$(COMPILED): | $(TEST)
	@$(BIN)/python -m pytest --collect-only -qq tests/unit tests/fuzz tests/simulation tests/cluster >/dev/null 2>&1 || true
	@touch $@

.PHONY: lint-types
lint-types:
	@$(BIN)/mypy

.PHONY: lint-rules
lint-rules:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tools.check_sizes
	@$(BIN)/python -m tools.check_ambient
	@$(BIN)/python -m tools.check_cycles
	@$(BIN)/python -m tools.check_subjects

.PHONY: format
format: $(TEST) ## Format the code and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: clean
clean: ## Remove everything that was installed, fetched or generated
	@rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .hypothesis .pytest_cache src/barnabas/wire/messages.pyi src/barnabas/wire/generated
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
