# `make` prints these targets.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup test test-launch test-all check mutants lint docs site bench

help:  ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Create .venv with everything for development, and install the pre-commit hooks
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/pip install -c constraints.txt -e '.[test,recipes,notebook]'
	.venv/bin/pre-commit install

test:  ## Run the tests, as the README does
	.venv/bin/python -m pytest -n 3 --dist loadfile -m "not launch"

test-launch:  ## Run the tests of launchers, signals, restarts and the docs' code
	.venv/bin/python -m pytest -n 3 --dist loadfile -m launch

test-all:  ## Run the tests with the long versions (hours)
	.venv/bin/python -m pytest -n 3 --dist loadfile --soak

check:  ## Run the tests that the uncommitted change can affect, nearest first, for 3 minutes (BASE=revision, ALL=1)
	.venv/bin/python tests/check.py $(if $(BASE),--base $(BASE)) $(if $(ALL),--all)

mutants:  ## Make small faults, one at a time in a copy, and report which the tests notice (ONLY=3,17 FOLDER=data JOBS=2)
	.venv/bin/python tests/mutants.py --only "$(ONLY)" --folder "$(FOLDER)" --jobs $(or $(JOBS),1)

lint:  ## Run ruff, ruff format --check, lint-imports, and mypy against a wheel
	.ci/lint

docs:  ## Run the code of the docs and docstrings, and check links, file names and generated pages
	.venv/bin/python -m pytest tests/test_docs.py tests/test_docstrings.py tests/trainer/loops/test_hooks.py tests/faults/test_table.py

site:  ## Build the documentation as a site in build/site (needs pip install -c constraints.txt '.[docs]')
	.venv/bin/zensical build --strict --clean

bench:  ## Measure the loop's overhead briefly (docs/evidence/benchmarks.md has the commands of the published figures)
	.venv/bin/python benchmarks/overhead.py --steps 500 --rounds 3
