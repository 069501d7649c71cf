# Everything that a fresh machine needs happens in `make setup`, which the other targets call.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NIGHTLY_PIPELINES := tests/differential/test_pipelines.py
NIGHTLY = $(filter-out $(NIGHTLY_PIPELINES),$(sort $(shell grep -rl --include='test_*.py' MILLWHEEL_NIGHTLY tests)))

.PHONY: help setup demo test classes nightly lint docs dist matrix bench bench-quick clean

help: ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

setup: $(STAMP) ## Make the virtual environment and see that Java is there.
	@scripts/java

$(STAMP): pyproject.toml constraints.txt scripts/venv
	@scripts/venv $(PYTHON) $(VENV)
	@touch $(STAMP)

demo: setup ## Find what is unusual in a generated stream of search queries.
	@$(BIN)/millwheel demo

test: setup ## Run every test.
	@$(MAKE) --no-print-directory -j 2 lint classes
	@$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder $(TESTS)

classes: $(STAMP) # The archive with which Spark starts in half the time: made while nothing else needs the cores.
	@$(BIN)/python -m millwheel.spark.class_archive

nightly: setup ## Run the tests that do more with MILLWHEEL_NIGHTLY=1 (hours): docs/testing.md lists them.
	@export MILLWHEEL_NIGHTLY=1; failed=0; \
	$(BIN)/pytest -n 2 $(NIGHTLY_PIPELINES) || failed=1; \
	$(BIN)/pytest -o timeout=7200 $(NIGHTLY) || failed=1; exit $$failed

lint: $(STAMP) ## Check format, style and types.
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

docs: setup ## Build the site of the docs into artifacts/site; a broken link is an error.
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]' && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

dist: setup ## Build the sdist and the wheel, and run the tests with the wheel outside of the checkout.
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dist]' && scripts/dist $(BIN)/python $(TESTS)

matrix: setup ## Run tests of Spark on every supported pair of Spark and Python (hours); PAIRS and TESTS choose.
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[matrix]' && scripts/matrix $(BIN)/uv $(PAIRS) $(if $(TESTS),-- $(TESTS))

bench-quick: setup ## Run every benchmark in a small form; report the seconds of each and which failed.
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]' && $(BIN)/python -m benchmarks --quick

bench: setup ## Measure: every figure, and the field; writes artifacts/bench.
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]' && $(BIN)/python -m benchmarks

clean: ## Remove the virtual environment and everything that was made.
	@rm -rf $(VENV) build dist artifacts *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
