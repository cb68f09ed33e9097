# Everything here works on a machine with Python 3.11, pip and make: each target sets itself up.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most tests wait for something most of the time, so a few more of them than there are cores.
JOBS ?= 3
PARALLEL := -n $(JOBS) --dist worksteal

.PHONY: help compiled demo test check interop spark bench bench-store bench-delays fuzz crash clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Made anew whenever the dependencies change. A half-made environment has no READY and is replaced.
$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "CometMQ needs Python 3.11 or newer: install it, or name one with 'make PYTHON=python3.12 …'" >&2; exit 1; }
	@echo "Setting up $(VENV) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The hot modules in compiled form, where there is a C compiler; COMETMQ_PURE=1 does without.
compiled: $(READY)
	@$(BIN)/python scripts/compile --optional

demo: compiled ## Send 10,000 order events through a whole cluster and prove that none is lost
	@$(BIN)/python -m examples.demo

test: compiled ## The unit, integration and short fuzz tests
	@$(BIN)/python -m pytest -q $(PARALLEL) $(ARGS)

check: $(READY) ## Format, lint, strict types, the import rule and the fast tests
	@scripts/check

interop: compiled ## The official Java, Go and Node clients and the Java broker against ours
	@$(BIN)/python -m pytest -q tests/interop -m interop --timeout 600 -n 2 --dist loadfile $(ARGS)

# An environment of its own: PySpark is some hundred megabytes that nothing else needs.
$(VENV)-spark/.ready: pyproject.toml
	@echo "Setting up $(VENV)-spark …"
	@$(PYTHON) -m venv --clear $(VENV)-spark
	@$(VENV)-spark/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	@touch $@

spark: $(VENV)-spark/.ready ## The Spark sources on local Spark and a small cluster; needs Java 17
	@$(VENV)-spark/bin/python -m pytest -q tests/spark --timeout 300 $(ARGS)

bench: compiled ## The send path beside the Java broker; rewrites benchmarks/README.md (about 10 minutes)
	@$(BIN)/python -m benchmarks.send_path $(ARGS)

bench-store: compiled ## The message store beside Java's; rewrites its part of benchmarks/README.md (about 15 minutes)
	@$(BIN)/python -m benchmarks.store $(ARGS)

bench-delays: compiled ## 100,000 messages due in one second: how late they come
	@$(BIN)/python -m benchmarks.delays $(ARGS)

fuzz: $(READY) ## Damaged bytes into every decoder for COMETMQ_FUZZ_SECONDS (default 600)
	@COMETMQ_FUZZ_SECONDS=$${COMETMQ_FUZZ_SECONDS:-600} $(BIN)/python -m pytest -q tests/fuzz --timeout 0 $(ARGS)

crash: compiled ## Kills, power losses, cut links, a storm of members, a million messages (about 25 minutes)
	@COMETMQ_CRASHES=$${COMETMQ_CRASHES:-10000} $(BIN)/python -m pytest -q tests/crash -n 2 --dist worksteal $(ARGS)

clean: ## Remove the environment and what builds left behind
	rm -rf $(VENV) $(VENV)-spark src/cometmq/_native dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
