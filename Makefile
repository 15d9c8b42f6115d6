PYTHON ?= python3
BIN := .venv/bin

# Where the C library is glibc: large pages for large arrays where the system has them, and freed memory stays with the
# process, else every call begins by having its pages cleared anew. Steps of the attacks are up to a quarter faster.
KEPT := glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1:$(KEPT)

.PHONY: demo test test-torch fuzz mutants old-faults bits bench docs figures notebooks lint clean

# What is installed is compiled to bytecode by all cores, but for what a third of the time would go to and nothing of ours
# imports; that some packages have files of Python 2 is no error.
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
UNUSED := /(tests?|testing|lexers|mypyc?|networkx|pip|pkg_resources|pyarrow|setuptools|tensorflow_datasets)/
COMPILE = -$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' .venv/lib

# Set up once, and again whenever the dependencies change. The pip that comes with a Python may be years old, and then
# takes three times as long to choose the packages; without a newer one it has to do.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	-$(INSTALL) --upgrade pip
	$(INSTALL) --editable '.[test]'
	$(COMPILE)
	touch $@

# What we are compared with (PyTorch) is large, and nothing else needs it.
.venv/bench: .venv/installed
	$(INSTALL) --editable '.[bench]'
	$(COMPILE)
	touch $@

# The documentation's generator is needed by nothing else.
.venv/docs: .venv/installed
	$(INSTALL) --editable '.[docs]'
	$(COMPILE)
	touch $@

# So is the tool that makes mistakes.
.venv/mutants: .venv/installed
	$(INSTALL) --editable '.[mutants]'
	touch $@

demo: .venv/installed
	$(BIN)/python -m experiments.cafe_scale --preset demo

test: .venv/installed
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# The tests that need PyTorch, the slow ones included; about ten minutes. Those of torchvision skip without it.
TORCH_TESTS := audit_torch audited capture command from_torch generative torch_normalisation torch_operators torchvision \
	twins

test-torch: .venv/bench
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m 'not gpu' $(TORCH_TESTS:%=tests/test_%.py)

# More than ten thousand hostile inputs, other ones every time.
fuzz: .venv/installed
	$(BIN)/python -m pytest --hypothesis-profile deep --capture no tests/test_fuzz*.py

# About an hour. Small mistakes are put into a copy of the source, and the tests should notice each of them.
mutants: .venv/mutants
	$(BIN)/python tests/mutants.py

# About ten minutes. How many tests of mended faults fail on the code in which the faults were found.
old-faults: .venv/installed
	$(BIN)/python tests/old_faults.py

# Whether the working tree makes the same bits as a commit: every attack, protocol and defense of the common tests.
BASE ?= HEAD
bits: .venv/installed
	$(BIN)/python -m tests.bits --base $(BASE) --only "$(ONLY)"

bench: .venv/bench
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.figure
	$(BIN)/python -m experiments.numbers

# Builds build/site/index.html without a network; a warning is an error. The variable silences an advertisement.
docs: .venv/docs
	$(BIN)/python -m experiments.reproduce --pages
	$(BIN)/python -m experiments.numbers
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Draws figures of the pages anew from docs/results.
figures: .venv/installed
	$(BIN)/python -m docs._figures

# About five minutes. Runs the notebooks, and keeps what they print and draw for their pages; one of them needs PyTorch.
notebooks: .venv/bench
	$(BIN)/python docs/_notebooks.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv runs
