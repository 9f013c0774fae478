# kinfolk: `make run` shows what it does, `make test` checks that it works here.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-all check format docs bench lock clean

run: $(READY)
	$(BIN)/kinfolk compare

# Tests compile far longer than they compute: programs are compiled quickly, not for speed, and kept for the next test.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2
QUICKLY := JAX_DISABLE_MOST_OPTIMIZATIONS=1
PYTEST := $(BIN)/python -m pytest -q

# Fast tests, before every commit: something about everything.
test: $(READY)
	$(QUICKLY) $(PYTEST) -n 2 --dist loadfile -m "not slow"

# Every tier.
test-all: $(READY)
	$(QUICKLY) $(PYTEST) -n 2 --dist loadfile -m "not alone and not computed"
	$(PYTEST) -n 2 --dist load -m "computed and not alone"
	$(QUICKLY) $(PYTEST) -m alone

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The documentation, in site/index.html; a warning is an error.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m benchmarks.studies.school.run

# One lock for all extras together, for every Python from 3.11 on; pip checks the hash of every file it installs.
lock:
	$(PYTHON) -m venv .venv && $(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --all-extras --no-header --python-version 3.11 pyproject.toml -o requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else f"kinfolk needs Python 3.11 or later, and {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $(READY)

clean:
	rm -rf .venv .jax_cache runs site .pytest_cache .ruff_cache
