# Everything from a fresh clone: `make train` and `make test` make the environment themselves.
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

.PHONY: train sample test test-deep test-oldest docs soak lock release clean

train: $(VENV)/installed  ## train, sample and score the embedded default (two to five minutes on two cores)
	$(RUN) train.py

sample: $(VENV)/installed  ## more samples from the default run
	$(RUN) sample.py ckpt=$$(ls -td runs/digits/*/model | head -1) num_samples=256 trajectory=true

test: $(VENV)/installed  ## before every commit: formatting, types, tests
	$(RUN) -m ruff check .
	$(RUN) -m mypy --cache-dir $(VENV)/mypy blackout train.py sample.py benchmarks tests/structure/test_protocols.py & types=$$!; \
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -m "not deep" -n 2 --dist worksteal; tests=$$?; \
	wait $$types && exit $$tests  # types are looked at while what tests is imported

test-deep: $(VENV)/installed  ## before a merge: the tests that take long, or look at what rarely breaks
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -m deep -n 2 --dist worksteal

test-oldest: $(OLDEST)/installed  ## the tests with the oldest supported versions; TORCH=2.11 TORCHVISION=0.26 for others
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -q -m "not deep" -n 2 --dist worksteal

docs: $(VENV)/documents  ## the site in site/; a broken link or an unreadable docstring is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

soak: $(VENV)/installed  ## kill runs, read one while it saves, and give the programs nonsense, for up to an hour; SEED=1 for others
	OMP_NUM_THREADS=1 $(RUN) -m tests.soak.kills --points 20 --seed $(SEED)
	$(RUN) -m tests.soak.readers
	OMP_NUM_THREADS=1 FUZZ_CASES=600 FUZZ_SEED=$(SEED) $(RUN) -m pytest -q tests/fuzz

# An environment is as good as the dependencies it was made from; the package itself is used from this folder.
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

lock:  ## write the newest versions that pyproject.toml allows to requirements.lock, from an environment of their own
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --editable ".[test,science]" "pillow<13"  # as gradio, of the extra demo, needs
	.venv-lock/bin/python -m pip freeze --exclude-editable > requirements.lock
	rm -rf .venv-lock

release: test test-deep docs  ## all tests, a wheel and an archive in dist/, and a tag, if version and change log agree
	$(RUN) -m tests.release

clean:
	rm -rf .venv .venv-torch-* build dist site .pytest_cache .mypy_cache .ruff_cache
