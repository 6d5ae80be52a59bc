# Everything here runs inside .venv, which is keyed by pyproject.toml: a second run installs nothing.
PYTHON ?= python3
# Which MLX build: cpu or cuda on Linux (never both), none on macOS. Override with `make EXTRA=cuda ...`.
EXTRA ?= $(shell if [ "$$(uname -s)" = Darwin ]; then echo none; elif command -v nvidia-smi >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
comma := ,
EXTRAS := $(if $(filter none,$(EXTRA)),dev,$(EXTRA)$(comma)dev)
VENV := .venv
BIN := $(VENV)/bin
KEY := $(shell $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(open("pyproject.toml", "rb").read() + b"$(EXTRA)" + sys.version.encode()).hexdigest()[:16])')
STAMP := $(VENV)/stamp-$(KEY)
ARGS ?=
# Processes that share the tests, file by file; in the order of the tree, at whose end are the short ones.
WORKERS ?= 2
SHARED = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: up test soak check format bench setup clean

up: setup
	@exec $(BIN)/darkbloom-py up $(ARGS)

test: setup
	$(BIN)/python -m pytest $(SHARED) $(ARGS)

soak: setup
	DARKBLOOM_SOAK=1 $(BIN)/python -m pytest --timeout 7200 $(SHARED) $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m tools.bench_engine $(ARGS)

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV)
