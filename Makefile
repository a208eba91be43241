# make train: environment, install, train CNN-A on real digits.   make test: all tests.   make help: the rest.
# Needs Python 3.11 or later and a C++ compiler; everything else goes into .venv.
SHELL := bash
BIN := .venv/bin
FIND_PYTHON := for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done
TRAIN := cnn-a --data digits --image-size 28 --epochs 4 --out runs/train
ARGS :=

.PHONY: help train test lint check sanitize nvrtc bench scaling score bench-peers test-gpu drill clean
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

.venv/bin/python:
	@python=$$($(FIND_PYTHON)); [ "$$python" ] || { echo "make: expected Python 3.11 or later with venv, got none"; exit 1; }; \
	$$python -m venv .venv

# A stamp for each set of extras, renewed when setup.cfg changes.
.venv/with-%: setup.cfg | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

train: .venv/with-data  ## train CNN-A on 5,000 real digits (ARGS="--epochs 8" adds options)
	$(BIN)/sprint train $(TRAIN) $(ARGS)

test: .venv/with-test  ## all tests (ARGS="-k pool" chooses)
	$(BIN)/python -m pytest $(ARGS)

# mypy takes the package's name from its folder, and the folder of a clone may have any name.
lint: .venv/with-test  ## ruff and mypy
	$(BIN)/ruff check .
	@mkdir -p .mypy_cache/root && ln -sfn ../.. .mypy_cache/root/sprint
	MYPYPATH=.mypy_cache/root $(BIN)/mypy $(foreach p,kernels engine distributed bench,-p sprint.$p) -m sprint.__main__ -m sprint.console

check: lint  ## lint, types, NVRTC for one GPU, fast tests
	$(BIN)/python -m sprint.kernels.nvrtc --arch 80
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# Memory faults do not depend on the order of threads, so each block size runs in one order.
sanitize: .venv/with-test  ## kernels under AddressSanitizer and UBSan
	$(BIN)/python tests/sanitize.py -m pytest --sanitize tests/kernels \
		-k "simt-32-shuffle or simt-128-forward or simt-256-reverse or (shuffle and not simt)" $(ARGS)

nvrtc: .venv/with-test  ## compile every kernel for sm_75, 80, 90, 100; no GPU needed
	$(BIN)/python -m sprint.kernels.nvrtc $(ARGS)

bench: .venv/with-test  ## time the kernels on this machine, saved in .benchmarks (sprint bench compare A B)
	$(BIN)/python -m pytest bench --benchmark-autosave --benchmark-save-data \
		--benchmark-columns=min,median,iqr,rounds --benchmark-max-time 0.5 $(ARGS)

# A torch >= 2.4 that .venv already has is kept; without one this installs PyTorch's default build.
bench-peers: .venv/with-peers  ## training steps of CNN-A beside PyTorch's on an idle machine, tables into README.md
	$(BIN)/sprint bench peers --readme README.md $(ARGS)

scaling: .venv/with-test  ## speed of 2 ranks against 1, and accuracy on many ranks and workers (a quarter of an hour), into docs/distributed.md
	$(BIN)/python -m sprint.bench.scaling speed --document docs/distributed.md
	$(BIN)/python -m sprint.bench.scaling accuracy --document docs/distributed.md

score: .venv/with-test  ## calibrate this machine, score its predictions against 24 runs, tables into docs/model.md
	$(BIN)/python -m sprint.bench.score_runs runs/score docs/model.md

# First the driver, then the download.
test-gpu: .venv/bin/python  ## kernels and a short training on a GPU against the host, then timings
	@$(BIN)/python -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null || \
		{ echo "make: expected an NVIDIA driver (libcuda.so.1), got none: this machine has no GPU to test"; exit 1; }
	@$(MAKE) --no-print-directory .venv/with-test .venv/with-cuda12
	@$(BIN)/python -c "import sys; from sprint.kernels.cuda import missing; sys.exit(missing())"
	timeout 300 $(BIN)/python -m pytest -m gpu tests $(ARGS)

drill: .venv/with-test  ## kill -9 a rank in each of 100 runs: all must survive with nothing lost
	$(BIN)/python tests/distributed/programs/drill.py --runs 100 $(ARGS)

clean:  ## remove what make and the tools have made, except runs/
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
