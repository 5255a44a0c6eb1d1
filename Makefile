# Thin targets; everything they need is set up here. A fresh machine needs Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help setup demo run listener test check fmt docs fuzz oracle soak bench bench-proxy bench-routing e2e dist clean lock

help: ## what there is
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml requirements/dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(STAMP)

setup: $(STAMP) ## make the virtual environment in .venv

demo: $(STAMP) ## two simulated engines, listener and router; round robin against KV-aware (ARGS="--once")
	$(BIN)/continuum-router demo $(ARGS)

run: $(STAMP) ## the router with the configuration in CONFIG
	$(BIN)/continuum-router serve --config $(CONFIG)

listener: $(STAMP) ## the listener with the configuration in CONFIG
	$(BIN)/continuum-kv-listener --config $(CONFIG)

test: $(STAMP) ## all tests but the real-engine one
	$(BIN)/python -m pytest -q $(ARGS)

check: $(STAMP) ## lint, types, import directions, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/generate_config_docs.py --check
	$(BIN)/python scripts/generate_metrics_docs.py --check
	$(BIN)/python scripts/generate_man_pages.py --check

fmt: $(STAMP) ## format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write the generated pages of docs/ and man/
	$(BIN)/python scripts/generate_config_docs.py
	$(BIN)/python scripts/generate_metrics_docs.py
	$(BIN)/python scripts/generate_man_pages.py
	PYTHONPATH=tests $(BIN)/python -m support.fault_table > docs/upstream-faults.md
	PYTHONPATH=tests $(BIN)/python -m support.framing_table > docs/framing.md

bench: $(STAMP) ## micro benchmarks of the pure parts
	for f in tests/bench/bench_*.py; do $(BIN)/python $$f; done

fuzz: $(STAMP) ## coverage-guided fuzzing of every reader, 10 minutes (ARGS="--seconds 60 --target sse")
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/fuzz.txt
	PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

bench-proxy: $(STAMP) ## the router beside its peers, with the tools of ../shared/bench (ARGS="--no-peers"); 30 minutes
	$(BIN)/python scripts/bench_proxy.py $(ARGS)

bench-routing: $(STAMP) ## the routing classes in the fleet simulator of ../shared/sim (ARGS="--same-choice")
	$(BIN)/python scripts/bench_routing.py $(ARGS)

soak: $(STAMP) ## ten minutes of streams, aborts, reloads and killed backends against one router
	PYTHONPATH=tests $(BIN)/python -m support.soak $(ARGS)

oracle: $(STAMP) ## a thousand random engine histories for each kind of source against the listener, minutes
	$(BIN)/python scripts/oracle.py $(ARGS)

e2e: $(STAMP) ## two real vLLM engines on the CPU (downloads about 0.7 GB; minutes)
	$(BIN)/python scripts/e2e_real_engine.py $(ARGS)

lock: $(STAMP) ## compile requirements/*.txt anew from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url \
	  --no-emit-find-links pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url \
	  --no-emit-find-links --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url \
	  --no-emit-find-links --extra fuzz -c requirements/dev.txt pyproject.toml -o requirements/fuzz.txt

dist: $(STAMP) ## wheel and source archive in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove what make made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
