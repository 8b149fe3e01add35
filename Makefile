# Everything happens in .venv, which the first target that needs it creates. It is built again only
# when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
CODE := src tests benchmarks examples docs/site

# The tests run in one process a core: more threads than cores only wait for each other.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint format docs bench browser clean

demo: $(INSTALLED)
	$(BIN)/partly demo

test: lint browser
	$(BIN)/pytest -n auto

# The review page is tested in a real browser. Where there is none and Debian's can be installed, it is.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	     && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	|| echo "there is no Chromium here: install it to have the review page tested"

lint: $(INSTALLED)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/partly methods --markdown > docs/methods.md
	$(BIN)/partly formats --markdown > docs/formats.md

# The site opens from the disk and needs no network. A broken link fails.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

# Those that need no data set; benchmarks/method.py, counting.py and others say what they want.
# `make bench QUICK=--quick` takes a few minutes and writes nothing.
BENCHMARKS := fused metrics many_labels step ranks stores hiding reading loading
QUICK ?=
bench: $(INSTALLED)
	$(BIN)/pip install --quiet --editable '.[bench]'
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py $(QUICK) || exit 1; done
	test -n "$(QUICK)" || $(BIN)/python benchmarks/page.py

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Partly needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
