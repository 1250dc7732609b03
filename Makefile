# Each target makes .venv, installs what it needs with the tested versions, and installs nothing again
# until pyproject.toml or constraints.txt changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Two at a time, with a thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo quick test check format soak bench results docs clean

demo: .venv/installed
	$(BIN)/ibinn demo

# About a minute: lint, types and the fast tests.
quick: check
	$(PYTEST) -m "not slow"

test: check
	$(PYTEST)

check: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The same properties over many more random cases, new ones each time.
# Then the suite with every fast path left out.
soak: .venv/installed-test
	HYPOTHESIS_PROFILE=soak $(PYTEST)
	IBINN_PLAIN=1 $(PYTEST)

# About 45 minutes on two cores with nothing else running. Writes benchmarks/results and the tables of
# docs/performance.md, estimator.md, scale.md and explorer.md.
bench: .venv/installed-bench
	$(BIN)/python benchmarks/coupling_start.py
	$(BIN)/python benchmarks/folder.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/step_profile.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/predicting.py
	$(BIN)/python benchmarks/classifiers.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/arithmetic.py
	$(BIN)/python benchmarks/explorer.py
	$(BIN)/python docs/benchmark_tables.py

# The trainings behind results/ and docs/results.md, some 12 hours on two cores; docs/reproduction.md tells what data
# they need. What is finished is not trained again.
results: .venv/installed
	$(BIN)/ibinn demo
	$(BIN)/python experiments/elsewhere.py
	$(BIN)/ibinn sweep experiments/fashion-table.toml --device cpu
	$(BIN)/ibinn sweep experiments/fashion-no-ramp.toml --device cpu
	$(BIN)/ibinn sweep experiments/fashion-gamma.toml --device cpu
	$(BIN)/python experiments/cifar10_8x8.py
	$(BIN)/ibinn sweep experiments/sigma-8x8.toml --device cpu
	$(BIN)/ibinn sweep experiments/cifar10-base.toml --device cpu
	$(BIN)/python experiments/gather.py
	$(BIN)/python docs/result_tables.py

# To build/docs/index.html; a warning is an error.
docs: .venv/installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[explorer]'
	touch $@

.venv/installed-bench: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,explorer]'
	touch $@ .venv/installed

.venv/installed-docs: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,explorer]'
	touch $@ .venv/installed

.venv/installed-test: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ .venv/installed
