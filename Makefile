# One command each: `make test`, `make demo`. Everything happens in .venv, installed with constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_FLAGS ?= -n 2 --dist loadfile

# LOCKED=1 (CI): all packages but torch by their hash. The platform must be the one requirements-lock.txt names.
LOCKED ?= 0
# The build tools are then the ones of the lock, too; pip's isolated build would fetch its own, unchecked.
ISOLATION := $(if $(filter 1,$(LOCKED)),--no-build-isolation)

.PHONY: test test-all quick lint types docs docs-links demo bench torture gpu-check lock clean

# torch first and pinned: a bare requirement would fetch the CUDA build. The peers are installed without their
# dependencies for the same reason; they serve the parity tests and the benchmarks only.
$(VENV)/.installed: pyproject.toml constraints.txt requirements-lock.txt requirements-peers.txt $(wildcard setup.py csrc/*/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),1)
	$(BIN)/python -m pip install -q --require-hashes --no-deps --only-binary :all: -r requirements-lock.txt
else
	$(BIN)/python -m pip install -q --upgrade pip
endif
	$(BIN)/python -m pip install -q -c constraints.txt torch numpy
	$(BIN)/python -m pip install -q -c constraints.txt $(ISOLATION) -e ".[data,aedat4,train,analysis,detection,export,triton,dev]"
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps -r requirements-peers.txt
	touch $@

test: $(VENV)/.installed lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow"

test-all: $(VENV)/.installed lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS)

# While you work: the reference against the kernels, neurons, a recipe end to end, architecture, words, links.
quick: $(VENV)/.installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow" tests/core tests/kernels/test_cpu_fast.py \
	    tests/nn/test_lif.py tests/nn/test_mp_init.py tests/nn/test_constants.py tests/train/test_plain_loop.py \
	    tests/test_architecture.py tests/docs/test_words.py tests/docs/test_links.py tests/docs/test_reference.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# The demo needs less than the tests: torch and the trainer. The kernels compile while packages are fetched, and Python
# compiles modules when it first imports them: both save most of a minute.
$(VENV)/.demo: pyproject.toml constraints.txt $(wildcard setup.py csrc/*/*)
	@echo "== installing what the demo needs into $(VENV) (torch is the largest; about a minute)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/extra_requirements.py train > $(VENV)/demo-requirements.txt
	@set -e; \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e . & kernels=$$!; \
	$(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt -r $(VENV)/demo-requirements.txt; \
	wait $$kernels
	touch $@

# The documentation site, into docs/_build/site: open index.html from disk. Warnings are errors; then every link, anchor
# and picture of the pages is checked. Tutorials are executed if they have changed.
$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python tools/extra_requirements.py docs > $(VENV)/docs-requirements.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $(VENV)/docs-requirements.txt
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W -n --keep-going -b html docs docs/_build/site
	$(BIN)/python tools/check_site.py docs/_build/site

# Links to other sites, which needs the network.
docs-links: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

demo:
	@test -e $(VENV)/.installed || $(MAKE) --no-print-directory $(VENV)/.demo
	@echo "== training with and without MP-Init + TrSG"
	$(BIN)/python examples/demo.py

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py --markdown docs/benchmarks.md

# Kills, full disks, damaged and hostile files; prints its seed (docs/reliability.md).
torture: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m torture

# Every registered network on the device "cuda", on a machine without a card: needs the CUDA build of torch, several GB.
.venv-gpu/.installed: pyproject.toml
	test -x .venv-gpu/bin/python || $(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install -q torch triton
	.venv-gpu/bin/python -m pip install -q -e ".[train]"
	touch $@

gpu-check: .venv-gpu/.installed
	.venv-gpu/bin/steadyspike gpu check

lock: $(VENV)/.installed
	$(BIN)/python tools/lock_dependencies.py

clean:
	rm -rf $(VENV) .venv-gpu build dist .pytest_cache .mypy_cache .ruff_cache
