# jstream. The two commands to know: make demo, make test. Every target first makes what it needs in .venv, once.
# Paths are relative throughout, so that the project's folder may have spaces in its name.

PYTHON ?= python3
SECONDS ?= 600
ARGS ?=
RUN = . .venv/environment.sh && .venv/bin/python

.PHONY: help setup demo demo-cluster test test-spark test-oldest test-orchestrators lint soak bench bench-peers docs dist release-check clean

help:
	@echo 'make demo              the main job, whole: NATS JetStream to a replicated stream to a Delta table'
	@echo 'make demo-cluster      the same orders on a Spark cluster whose store is three buckets; one is emptied'
	@echo 'make test              all tests but the long ones; ARGS="-k name" chooses among them'
	@echo 'make test-spark VERSION=4.0  what differs between versions of Spark, in an environment below build/'
	@echo 'make test-oldest       all tests with the lowest versions of all dependencies'
	@echo 'make test-orchestrators  the files for Airflow and Dagster, run by these, in an environment below build/'
	@echo 'make lint              style, types, who may import whom, and the English of pages and help'
	@echo 'make soak SECONDS=600  the long tests, for about that many seconds each'
	@echo 'make bench             measure all figures, one table of ratios; ARGS="--only planning scrub" chooses among them'
	@echo 'make bench-peers       reading and writing beside Kafka, with a real broker, and Delta'
	@echo 'make docs              the documentation as a site, in build/site'
	@echo 'make dist              wheel, sdist and the list of their components (SBOM), in dist'
	@echo 'make release-check     what has to hold before a release; ARGS=--quick leaves the long tests out'
	@echo 'make setup             only make .venv; the other targets do it themselves'
	@echo 'make clean             remove .venv and what the tools left behind'

setup:
	@"$(PYTHON)" scripts/setup_environment.py

demo: setup
	@$(RUN) -m spark_stream.demo

demo-cluster: setup
	@$(RUN) -m spark_stream.demo.cluster

test: setup
	@$(RUN) -m pytest -n auto --dist loadscope --durations=25 $(ARGS)

test-spark: setup
	@$(RUN) scripts/spark_matrix.py $(VERSION) $(ARGS)

test-oldest: setup
	@$(RUN) scripts/spark_matrix.py oldest $(ARGS)

test-orchestrators: setup
	@$(RUN) scripts/orchestrators.py $(ARGS)

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@. .venv/environment.sh && .venv/bin/lint-imports
	@$(RUN) scripts/prose.py

soak: setup
	@JSTREAM_SOAK_SECONDS="$(SECONDS)"; export JSTREAM_SOAK_SECONDS; $(RUN) -m pytest -m soak -s --timeout=0 $(ARGS)

bench: setup
	@mkdir -p benchmarks/results
	@$(RUN) -m benchmarks $(ARGS)

bench-peers: setup
	@mkdir -p benchmarks/results
	@$(RUN) scripts/kafka_jars.py
	@$(RUN) -m benchmarks.peers $(ARGS)

docs: setup
	@NO_MKDOCS_2_WARNING=1; export NO_MKDOCS_2_WARNING; $(RUN) -m mkdocs build --strict

dist: setup
	@rm -rf dist
	@$(RUN) scripts/distribution.py dist

release-check: setup
	@$(RUN) scripts/release_check.py $(ARGS)

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
