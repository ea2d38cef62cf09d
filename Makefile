# `make` prints these targets.
export OMP_NUM_THREADS ?= 1
PYTHON ?= python3
EXTRAS = test,recipes,notebook,trackers,cli,docs,neighbours,s3,store,ray,optuna,finetuning,release,onnx,torchao

.PHONY: help setup setup-all test test-launch test-rest test-oldest test-newest test-all test-cost check mutants figures lint docs site bench

help:  ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Create .venv with everything for development, and install the pre-commit hooks
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/pip install -c constraints.txt -e '.[test,recipes,notebook]'
	.venv/bin/pre-commit install

setup-all:  ## Install every extra too: nothing of the tests is skipped for want of a package
	.venv/bin/pip install -c constraints.txt -e '.[$(EXTRAS)]'

test:  ## Run the tests, as the README does
	.venv/bin/python -m pytest -n 3 --dist loadfile -m "not launch"

test-launch:  ## Run the tests of launchers, signals, restarts and the docs' code
	.venv/bin/python -m pytest -n 3 --dist loadfile -m launch

test-rest:  ## Run what `make test` left out and skipped, as .ci/run does (after make setup-all)
	.venv/bin/python -m pytest -n 3 --dist loadfile --rest

test-oldest: build/oldest/installed  ## Run the tests with the versions of constraints-oldest.txt (gigabytes, in build/; PYTHON=python3.12)
	build/oldest/bin/python -m pytest -n 3 --dist loadfile

test-newest: build/newest/installed  ## The same with constraints-newest.txt
	build/newest/bin/python -m pytest -n 3 --dist loadfile

build/oldest/installed: EXTRAS := $(EXTRAS:,torchao=)# which wants torch 2.10
build/%/installed: constraints-%.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q -c $< -e '.[$(EXTRAS)]'
	touch $@

test-all:  ## Run the tests with the long versions (hours)
	.venv/bin/python -m pytest -n 3 --dist loadfile --soak

test-cost:  ## Run all of .ci/run's tests and print what they took (needs every extra: make setup-all)
	rm -rf build/cost
	-.venv/bin/python -m pytest -n 3 --dist loadfile -m "not launch" --cost=build/cost
	-.venv/bin/python -m pytest -n 3 --dist loadfile --rest --cost=build/cost
	.venv/bin/python tests/cost.py build/cost --write

figures:  ## Train all recipes to the figures that their pages state (before a release; ten minutes)
	.venv/bin/python -m pytest --soak tests/recipes/test_figures.py

check:  ## Run the tests that the uncommitted change can affect, nearest first, for 3 minutes (BASE=revision, ALL=1)
	.venv/bin/python tests/check.py $(if $(BASE),--base $(BASE)) $(if $(ALL),--all)

mutants:  ## Make small faults, one at a time in a copy, and report which the tests notice (ONLY=3,17 FOLDER=data JOBS=2)
	.venv/bin/python tests/mutants.py --only "$(ONLY)" --folder "$(FOLDER)" --jobs $(or $(JOBS),1)

lint:  ## Run ruff, ruff format --check, lint-imports, and mypy against a wheel
	.ci/lint

docs:  ## Run the code of the docs and docstrings, and check links, file names and generated pages
	.venv/bin/python -m pytest tests/test_docs.py tests/test_docstrings.py tests/trainer/loops/test_hooks.py tests/faults/test_table.py tests/test_promises.py

site:  ## Build the documentation as a site in build/site (needs pip install -c constraints.txt '.[docs]')
	.venv/bin/zensical build --strict --clean

bench:  ## Measure the loop's overhead briefly (docs/evidence/benchmarks.md has the commands of the published figures)
	.venv/bin/python benchmarks/overhead.py --steps 500 --rounds 3
