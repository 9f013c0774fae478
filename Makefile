# kinfolk: `make run` shows what it does, `make test` checks that it works here.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-all test-long test-ray newest-flower check format docs bench lock clean

run: $(READY)
	$(BIN)/kinfolk compare --epsilon 1 --epsilon 3 --epsilon 8

# Tests compile far longer than they compute: programs are compiled quickly, not for speed, and kept for the next test.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2
# Tests start many processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
QUICKLY := JAX_DISABLE_MOST_OPTIMIZATIONS=1
PYTEST := $(BIN)/python -m pytest -q

# Fast tests, before every commit: something about everything.
test: $(READY)
	$(QUICKLY) $(PYTEST) -n 2 --dist loadfile -m "not slow"

# Every tier.
test-all: $(READY)
	$(QUICKLY) $(PYTEST) -n 2 --dist loadfile -m "not alone and not computed and not long"
	$(PYTEST) -n 2 --dist load -m "computed and not alone and not long"
	$(QUICKLY) $(PYTEST) -m alone

# By hand: every method at person level, the papers' quick runs: cases that differ little from those of `make test-all`.
test-long: $(READY)
	$(PYTEST) -n 2 --dist load -m long

# What lets an environment of its own see everything else of .venv, and the package.
define beside
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib")); print("$(CURDIR)/src")' \
		> $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kinfolk.pth
endef

# Sweeps on Ray, which is too heavy for everybody's environment: in one of its own, with a lock of its own.
test-ray: .venv-ray/.ready
	$(QUICKLY) .venv-ray/bin/python -m pytest -q tests/training/test_on_ray.py

.venv-ray/.ready: requirements-ray.lock $(READY)
	rm -rf .venv-ray && $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-ray.lock
	$(call beside,.venv-ray)
	@touch $@

# The federation's tests against the newest Flower, in an environment of its own: says what an upgrade would break.
newest-flower: $(READY)
	rm -rf .venv-flower && $(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check --upgrade flwr
	$(call beside,.venv-flower)
	@.venv-flower/bin/python -c 'from importlib.metadata import version; print("Flower", version("flwr"), "is tested; there is")'
	@.venv-flower/bin/pip index versions flwr 2>/dev/null | head -1
	$(QUICKLY) .venv-flower/bin/python -m pytest -q tests/deploy/test_flower_api.py tests/deploy/test_superlink_guard.py \
		tests/deploy/test_carriers.py tests/deploy/test_parity_processes.py tests/deploy/test_flower_processes.py

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

# One lock for all extras together but Ray, which has its own, with the same versions of what both need; for every Python
# from 3.11 on. pip checks the hash of every file it installs.
EXTRAS := import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-header --python-version 3.11
lock:
	$(PYTHON) -m venv .venv && $(BIN)/pip install --quiet uv
	$(COMPILE) $$($(BIN)/python -c '$(EXTRAS); print(*(f"--extra={name}" for name in extras if name != "ray"))') \
		pyproject.toml -o requirements.lock
	$(BIN)/python -c '$(EXTRAS); print(*extras["ray"], sep="\n")' | \
		$(COMPILE) --constraints requirements.lock - -o requirements-ray.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else f"kinfolk needs Python 3.11 or later, and {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $(READY)

clean:
	rm -rf .venv .venv-flower .venv-ray .jax_cache runs site .pytest_cache .ruff_cache
