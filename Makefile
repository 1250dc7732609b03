# Each target makes .venv, installs what it needs with the tested versions, and installs nothing again
# until pyproject.toml or constraints.txt changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test check format soak bench clean

demo: .venv/installed
	$(BIN)/ibinn demo

test: check
	$(BIN)/python -m pytest

check: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The same properties over many more random cases, new ones each time.
soak: .venv/installed-test
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest

bench: .venv/installed
	$(BIN)/python benchmarks/coupling_start.py
	$(BIN)/python benchmarks/folder.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/loop.py

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ .venv/installed
