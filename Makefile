# Commands for developers: `make help` lists them. Each makes the environment it needs.
VENV ?= .venv
PYTHON ?= python3
RUN := $(VENV)/bin/python
SEED ?= 0
# tested versions; LOCK=/dev/null takes the newest that pyproject.toml allows
LOCK ?= requirements.lock
# of `make test-oldest`: the oldest supported torch, and the Python for which all of requirements-oldest.lock has wheels
TORCH ?= 2.10
TORCHVISION ?= 0.25
OLDEST_PYTHON ?= python3.11
OLDEST := .venv-torch-$(TORCH)

.PHONY: help train sample lint types test test-deep test-oldest docs soak lock release clean

help:  ## list the commands
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

train: $(VENV)/installed  ## train, sample and score the default model of digits (two to five minutes on two cores)
	$(RUN) train.py

sample: $(VENV)/installed  ## more samples from the default run
	$(RUN) sample.py ckpt=$$(ls -td runs/digits/*/model | head -1) num_samples=256 trajectory=true

lint: $(VENV)/installed  ## style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/installed  ## type annotations
	$(RUN) -m mypy --cache-dir $(VENV)/mypy blackout train.py sample.py benchmarks tests/structure/test_protocols.py

test: lint types  ## before every commit: style, types and the tests that are not `deep`
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -m "not deep" -n 2 --dist worksteal

test-deep: $(VENV)/installed  ## before a merge: the `deep` tests, which take long or check what rarely breaks
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -m deep -n 2 --dist worksteal

test-oldest: $(OLDEST)/installed  ## the tests with the oldest supported versions; TORCH=2.11 TORCHVISION=0.26 for others
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -q -m "not deep" -n 2 --dist worksteal

docs: $(VENV)/documents  ## the site in site/; a broken link or an unreadable docstring is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

soak: $(VENV)/installed  ## kill runs, read checkpoints while they are written, and try random input, for up to an hour; SEED=1 for other cases
	OMP_NUM_THREADS=1 $(RUN) -m tests.soak.kills --points 20 --seed $(SEED)
	$(RUN) -m tests.soak.readers
	OMP_NUM_THREADS=1 FUZZ_CASES=600 FUZZ_SEED=$(SEED) $(RUN) -m pytest -q tests/fuzz

# The package itself is installed in editable mode; an environment is renewed when its dependencies change.
$(VENV)/installed: pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --constraint $(LOCK) --editable ".[test,science]"
	touch $@

$(OLDEST)/installed: pyproject.toml requirements-oldest.lock
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint requirements-oldest.lock --editable ".[test]" \
		"torch==$(TORCH).*" "torchvision==$(TORCHVISION).*"
	touch $@

$(VENV)/documents: $(VENV)/installed
	$(RUN) -m pip install --quiet --constraint $(LOCK) --editable ".[docs]"
	touch $@

lock:  ## write the newest versions that pyproject.toml allows to requirements.lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --editable ".[test,science]" "pillow<13"  # gradio, of the extra `demo`, needs it
	.venv-lock/bin/python -m pip freeze --exclude-editable > requirements.lock
	rm -rf .venv-lock

release: test test-deep docs  ## all tests, a wheel and an archive in dist/, and a tag, if version and change log agree
	$(RUN) -m tests.release

clean:  ## remove environments, builds and caches
	rm -rf .venv .venv-torch-* build dist site .pytest_cache .mypy_cache .ruff_cache
