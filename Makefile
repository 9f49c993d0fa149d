# The two commands of the README are `make demo` and `make test`; each does its own set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Installed first. A build of this version that is there already (a GPU machine's, README) is kept.
TORCH := torch==2.13.0

TEST_WORKERS ?= 2

export OMP_NUM_THREADS ?= 2
export HF_HUB_OFFLINE ?= 1

.PHONY: setup demo test test-browser lint types ui clean-demo

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"eagle3_assets needs Python >= 3.11, this is {v[0]}.{v[1]}; run: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup ## the whole flow in miniature: no key, no GPU, no model download
	$(BIN)/eagle3 run

test: setup # a file's tests stay together; the minutes-long files start first
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder eagle3_assets_tests/e2e eagle3_assets_tests

test-browser: setup ## needs Debian's chromium
	$(BIN)/python -m pytest -m browser

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

ui: setup ## the Dagster UI on http://127.0.0.1:3000
	$(BIN)/dagster dev

clean-demo: ## forget the demo campaign and Dagster's own state
	rm -rf data/demo data/dagster
