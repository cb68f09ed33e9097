# Everything here works on a machine with Python 3.11, pip and make: each target sets itself up.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPARK_READY := $(VENV)-spark/.ready
DOCS_READY := $(VENV)-docs/.ready
FUZZ_READY := $(VENV)-fuzz/.ready
SUPPLY_READY := $(VENV)-supply/.ready
# Most tests wait for something most of the time, so a few more of them than there are cores.
JOBS ?= 3
PARALLEL := -n $(JOBS) --dist worksteal
# Those of `make test` have no JVM or browser beside them. Each collects all tests, which takes 7 s of a
# processor, twice as much in a fresh clone: one more pays only while tests wait.
TEST_PARALLEL := -n $(or $(TEST_JOBS),4) --dist worksteal
# Modules as a whole, which share servers, in the order of the room's conftest: the longest first.
BY_MODULE := --dist loadfile --no-loadscope-reorder

# Tasks, executors, drivers, planners and brokers, killed at random under load: COMETMQ_SPARK_KILLS of
# them (50), and COMETMQ_TABLE_KILLS of the table service's processes (10).
SPARK_KILLS = $(VENV)-spark/bin/python -m pytest -q tests/spark -m crash $(ARGS)

# Some machines have it set. Tests start Python more than a thousand times, and each start would compile every
# module that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help compiled demo test check interop console-test screenshots spark spark-suite spark-kills spark-versions spark-clusters table-proof bench bench-store bench-delays bench-replication bench-processes bench-access bench-console bench-routes bench-proxy bench-clients bench-spark-kafka fuzz floods audit sbom crash sim hunt docs coverage release clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# Made anew whenever the dependencies change. A half-made environment has no READY and is replaced.
$(READY): pyproject.toml locks/dev.txt
	@PYTHON=$(PYTHON) scripts/environment $(VENV) dev
	@touch $@

# An environment of its own: PySpark is some hundred megabytes that nothing else needs.
$(SPARK_READY): pyproject.toml locks/dev-spark-tables.txt
	@PYTHON=$(PYTHON) scripts/environment $(VENV)-spark dev,spark,tables '(with PySpark, 550 MB, once)'
	@touch $@

# Other versions of PySpark, and what Spark Connect needs, each in a directory that is put in front of
# the path of $(VENV)-spark: all else is the same.
SPARK_VERSIONS := 4.0 4.1 connect
SPARK_VERSIONS_READY := $(SPARK_VERSIONS:%=$(VENV)-spark-%/.ready)
# A server of S3, and other engines that read archives and their tables: behind the path of $(VENV)-spark.
SPARK_TABLES_READY := $(VENV)-spark-tables/.ready
# dbt, which reads published tables by DuckDB: a path of its own, 260 MB.
SPARK_DBT_READY := $(VENV)-spark-dbt/.ready
# The Java that Trino runs on: 60 MB.
SPARK_TRINO_READY := $(VENV)-spark-trino/.ready
# The PySpark that Spark's Kafka connector is made for, in front of the path: benchmarks/kafka.py.
SPARK_KAFKA_READY := $(VENV)-spark-kafka/.ready
$(SPARK_VERSIONS_READY) $(SPARK_TABLES_READY) $(SPARK_DBT_READY) $(SPARK_TRINO_READY) $(SPARK_KAFKA_READY): $(VENV)-spark-%/.ready: locks/spark-%.txt $(SPARK_READY)
	@echo "Setting up $(@D) …"
	@rm -rf $(@D) && $(VENV)-spark/bin/uv pip install --quiet --no-deps --require-hashes \
		--python $(VENV)-spark/bin/python --target $(@D) -r $<
	@touch $@

# Clients of Kafka, and one of RocketMQ over Java's: benchmarks/clients.py.
OTHER_CLIENTS_READY := $(VENV)-other-clients/.ready
$(OTHER_CLIENTS_READY): locks/other-clients.txt $(READY)
	@echo "Setting up $(@D) …"
	@rm -rf $(@D) && $(BIN)/uv pip install --quiet --no-deps --require-hashes \
		--python $(BIN)/python --target $(@D) -r $<
	@touch $@

# atheris has 35 MB, and only a long run needs it.
$(FUZZ_READY): pyproject.toml locks/dev-fuzz.txt
	@PYTHON=$(PYTHON) scripts/environment $(VENV)-fuzz dev,fuzz
	@touch $@

$(SUPPLY_READY): pyproject.toml locks/supply.txt
	@PYTHON=$(PYTHON) scripts/environment $(VENV)-supply supply
	@touch $@

$(DOCS_READY): pyproject.toml locks/docs.txt
	@PYTHON=$(PYTHON) scripts/environment $(VENV)-docs docs
	@touch $@

# The hot modules in compiled form, where there is a C compiler; COMETMQ_PURE=1 does without.
compiled: $(READY)
	@$(BIN)/python scripts/compile --optional

# The cluster's part needs little and comes at once; the rest follows where Spark can run.
DEMO := reports/demo
demo: $(READY) ## Send 10,000 order events through a whole cluster, prove that none is lost; archive and audit them
	@$(BIN)/python -m examples.demo --part messages $(DEMO)
	@if scripts/java-for-spark; then \
		scripts/demo-follows $(DEMO) $(VENV)-spark $(VENV) && $(MAKE) -s $(SPARK_READY) && \
		$(VENV)-spark/bin/python -m examples.demo --part pipelines $(DEMO); \
	else $(BIN)/python -m examples.demo --part pipelines $(DEMO); fi

# In a fresh clone one process compiles the modules of the tests while mypyc compiles the hot ones. Otherwise each
# worker of pytest would compile them, for twelve seconds.
# This process leaves CI's list of failed tests (COMETMQ_AGAIN) to the run that follows.
test: $(READY) ## The unit, integration and short fuzz tests
	@test -d tests/unit/__pycache__ || env -u COMETMQ_AGAIN $(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 & \
		$(BIN)/python scripts/compile --optional; status=$$?; wait; exit $$status
	@$(BIN)/python -m pytest -q -p tests.in_memory $(TEST_PARALLEL) $(ARGS)

check: $(READY) ## Format, lint, strict types, the import rule and the fast tests
	@scripts/check

interop: compiled ## The official Java, Go, Node, Rust, Python and C++ clients and the Java servers against ours
	@$(BIN)/python -m tests.interop.peers
	@$(BIN)/python -m tests.interop.loaded_classes
	@$(BIN)/python -m pytest -q tests/interop -m interop --timeout 900 -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# The pages' styles and scripts run in Debian's Chromium; axe-core, which judges how accessible they are,
# comes from npm.
console-test: compiled ## The web console: every page and action on a real cluster, in Chromium where scripts count
	@$(BIN)/python -m tests.console.axe
	@$(BIN)/python -m pytest -q tests/console -n $(JOBS) $(BY_MODULE) $(ARGS)

screenshots: compiled ## The pictures of the console in docs/img, of a cluster that is filled for them
	@$(BIN)/python scripts/screenshots

spark: ## The Spark sources, sink and pipelines on local Spark and a small cluster; needs Java 17
	@$(MAKE) -s spark-suite && $(MAKE) -s spark-kills

# Two test processes at a time, each with its own Spark.
spark-suite: $(SPARK_READY) $(SPARK_TABLES_READY) $(SPARK_DBT_READY)
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@$(VENV)-spark/bin/mypy src benchmarks tests/spark tests/unit/spark tests/unit/pipelines
	@$(VENV)-spark/bin/python -m tests.interop.peers java
	@$(VENV)-spark/bin/python -m tests.spark.hadoop_aws
	@$(VENV)-spark/bin/python -m tests.spark.iceberg_rest
	@$(VENV)-spark/bin/python -m tests.spark.class_archive
	@$(VENV)-spark/bin/python -m pytest -q tests/spark -m 'not crash' --timeout 900 -n 2 $(BY_MODULE) $(ARGS)

spark-kills: $(SPARK_READY)
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@$(SPARK_KILLS)

spark-versions: $(SPARK_VERSIONS_READY) $(SPARK_TABLES_READY) ## Sources and sink on the older versions of PySpark, and through Spark Connect; tables by Spark's runtimes; HDFS; files for Kubernetes
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@PYTHONPATH=$(abspath $(VENV)-spark-4.1) $(VENV)-spark/bin/python -m tests.spark.spark_tables --get
	@$(VENV)-spark/bin/python -m tests.spark.hdfs
	@$(VENV)-spark/bin/python -m tests.spark.spark_operator
	@COMETMQ_SPARK_VERSIONS="$(SPARK_VERSIONS)" $(VENV)-spark/bin/python -m pytest -q tests/spark/test_versions.py tests/spark/test_spark_tables.py tests/spark/test_archive_hdfs.py tests/spark/test_kubernetes.py --timeout 900 -n 2 --dist worksteal $(ARGS)

# MESSAGES=5000000 KILLS=50 is the whole proof. Trino (820 MB from Maven) is why CI does without.
table-proof: compiled $(SPARK_TABLES_READY) $(SPARK_TRINO_READY) $(VENV)-spark-4.1/.ready ## Tables read by every engine at twenty snapshots, through kills: MESSAGES=100000 KILLS=20
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@$(BIN)/python -m tests.interop.peers java
	@PYTHONPATH=$(abspath $(VENV)-spark-4.1) $(VENV)-spark/bin/python -m tests.spark.spark_tables --get
	@$(VENV)-spark/bin/python -m tests.spark.trino
	@$(VENV)-spark/bin/python -m tests.spark.table_proof --messages $(or $(MESSAGES),100000) --kills $(or $(KILLS),20) $(ARGS)

# Three minutes of a processor: not in CI.
spark-clusters: $(SPARK_READY) ## The commands of docs/spark-clusters.md on Spark's standalone cluster, and on Hadoop's small one
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@$(VENV)-spark/bin/python -m tests.spark.hdfs
	@COMETMQ_CLUSTERS=true $(VENV)-spark/bin/python -m pytest -q tests/spark/test_clusters.py --timeout 900 $(ARGS)

bench: compiled ## The send path beside the Java broker; rewrites benchmarks/README.md (about 10 minutes)
	@$(BIN)/python -m benchmarks.send_path $(ARGS)

bench-store: compiled ## The message store beside Java's; rewrites its part of benchmarks/README.md (about 15 minutes)
	@$(BIN)/python -m benchmarks.store $(ARGS)

bench-processes: compiled ## Brokers of --processes 1, 2 and 4 beside a single one; rewrites its part of benchmarks/README.md (about 4 minutes)
	@$(BIN)/python -m benchmarks.processes $(ARGS)

bench-replication: compiled ## Master and slave beside Java's; rewrites its part of benchmarks/README.md (about 10 minutes)
	@$(BIN)/python -m benchmarks.replication $(ARGS)

bench-access: compiled ## Access control and TLS beside Java's; rewrites its part of benchmarks/README.md (about 15 minutes)
	@$(BIN)/python -m benchmarks.access $(ARGS)

bench-console: compiled ## The console's pages at 5,000 topics and 5,000 groups; rewrites their part of benchmarks/README.md (about 3 minutes)
	@$(BIN)/python -m benchmarks.console $(ARGS)

bench-spark-kafka: compiled $(SPARK_KAFKA_READY) ## Spark's sources and sink beside its Kafka connector; rewrites its part of benchmarks/README.md (about 15 minutes)
	@$(VENV)-spark/bin/python scripts/store-jar --optional
	@PYTHONPATH=$(abspath $(VENV)-spark-kafka) $(VENV)-spark/bin/python -m benchmarks.spark_kafka $(ARGS)

bench-delays: compiled ## 100,000 messages due in one second: how late they come
	@$(BIN)/python -m benchmarks.delays $(ARGS)

bench-routes: compiled ## Reads of routes at a name server beside Java's (about 2 minutes)
	@$(BIN)/python -m benchmarks.routes $(ARGS)

bench-clients: compiled $(OTHER_CLIENTS_READY) ## Our client beside other clients of RocketMQ and Kafka; rewrites its part of benchmarks/README.md (about 20 minutes)
	@$(BIN)/python -m benchmarks.clients $(ARGS)

bench-proxy: compiled ## The gRPC proxy beside Java's, in front of both brokers; rewrites its part of benchmarks/README.md (about 12 minutes)
	@$(BIN)/python -m benchmarks.proxy $(ARGS)

# COMETMQ_FUZZ_SECONDS=600, or ARGS="--inputs 10000000 --record"; ARGS="--help" lists what there is.
fuzz: $(FUZZ_READY) ## Any bytes into all that reads bytes, guided by coverage, for COMETMQ_FUZZ_SECONDS (default 600)
	@$(VENV)-fuzz/bin/python -m tests.fuzz --seconds $${COMETMQ_FUZZ_SECONDS:-600} $(ARGS)

audit: $(SUPPLY_READY) ## Known vulnerabilities in what the locks name; needs PyPI
	@$(VENV)-supply/bin/python scripts/audit $(ARGS)

sbom: $(SUPPLY_READY) ## What a release brings, with licences and hashes, as CycloneDX: build/cometmq.cdx.json
	@mkdir -p build && scripts/sbom build/cometmq.cdx.json

# ARGS="--only oneway-sends --seconds 30" floods in one way only; --report writes docs/reliability.md.
floods: compiled ## What a well-behaved client notices while others flood broker and name server (about 12 minutes)
	@$(BIN)/python -m tests.floods $(ARGS)

crash: compiled ## Kills, power losses, lost nodes, cut links, a storm of members, a million messages; 600 kills under Spark
	@export COMETMQ_LOSSES=$${COMETMQ_LOSSES:-144} COMETMQ_POP_KILLS=$${COMETMQ_POP_KILLS:-200} COMETMQ_GRPC_KILLS=$${COMETMQ_GRPC_KILLS:-200}; COMETMQ_CRASHES=$${COMETMQ_CRASHES:-10000} \
		$(BIN)/python -m pytest -q tests/crash $(PARALLEL) $(ARGS)
	@if [ "$${COMETMQ_SPARK_KILLS:-500}" = 0 ]; then :; elif scripts/java-for-spark; then \
		$(MAKE) -s $(SPARK_READY) && $(VENV)-spark/bin/python scripts/store-jar --optional && export COMETMQ_SPARK_KILLS=$${COMETMQ_SPARK_KILLS:-500} COMETMQ_TABLE_KILLS=$${COMETMQ_TABLE_KILLS:-100} && $(SPARK_KILLS); \
	else echo "Not run: kills under Spark, which needs Java 17 or newer."; fi

# SEEDS=1000 runs as many fresh seeds, two at a time, SEED=4711 that one, and cuts it short if it fails.
# HOURS are the virtual hours of a run; STORE is a store directory to begin with.
sim: compiled ## Simulated clusters under faults, each from a seed: SEEDS=200 HOURS=0.5, or SEED=4711
	@$(BIN)/python -m tests.simulation --hours $(or $(HOURS),0.5) $(if $(STORE),--store $(STORE)) --shrink \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200) --jobs 2) $(ARGS)

# ARGS="--only simulation,fuzz" hunts with some kinds only; ARGS=--list shows them.
hunt: compiled ## All that draws, with fresh seeds, two at a time: MINUTES=30; what fails is in build/hunt
	@$(BIN)/python -m tests.hunt --minutes $(or $(MINUTES),30) $(ARGS)

docs: $(DOCS_READY) ## The documentation site in site/, built strictly: a warning is an error
	@$(VENV)-docs/bin/python scripts/docs

# Random schedules reach their lines in the first thousand steps. Newer Pythons count lines more cheaply:
# make coverage PYTHON=python3.13 VENV=.venv-3.13
coverage: $(READY) ## How much of the source the unit and integration tests run; htmlcov/ shows the lines
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then export COVERAGE_CORE=sysmon; fi; \
	COMETMQ_PURE=1 COMETMQ_DELAY_STEPS=4000 COMETMQ_TRANSACTION_STEPS=5000 $(BIN)/python -m pytest -q $(PARALLEL) \
		--cov=cometmq --cov-report=term:skip-covered --cov-report=html tests/unit tests/integration $(ARGS)

release: $(READY) ## Check, build and tag the version of CHANGELOG; pushes and uploads nothing
	@scripts/release

clean: ## Remove the environment and what builds left behind
	rm -rf $(VENV) $(VENV)-spark $(SPARK_VERSIONS:%=$(VENV)-spark-%) $(VENV)-spark-tables $(VENV)-spark-dbt $(VENV)-spark-trino $(VENV)-spark-kafka $(VENV)-other-clients $(VENV)-docs $(VENV)-fuzz $(VENV)-supply site htmlcov .coverage src/cometmq/_native src/cometmq/spark/jvm/*.jar dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
