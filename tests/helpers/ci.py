"""Which tests ``.ci/run`` runs: all tiers with every extra, and what is marked ``soak(ci=True)``.

A test is named as pytest names it, without parameters: ``tests/file.py::function``.
"""

from __future__ import annotations

import functools
import re
import sys
import tomllib

from . import sources, tiers

IMPORTED_AS = {"scikit-learn": "sklearn", "nvidia-ml-py": "pynvml"}
"""Distributions whose package has another name."""
COMES_WITH = {"jupyter_client": "nbclient"}
"""Packages that are a dependency of one in pyproject.toml."""


def exists(test: str) -> bool:
    """Whether there is such a function, or file."""
    file, _, name = test.partition("::")
    path = sources.ROOT / file
    return path.exists() and (not name or name in sources.read(path).tests)


def tests_of(file: str) -> list[str]:
    """The tests of a file, or of all files of a folder."""
    path = sources.ROOT / file
    paths = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    names = [
        (one.relative_to(sources.ROOT).as_posix(), name)
        for one in paths
        for name in sources.read(one).tests
    ]
    return [f"{place}::{name}" for place, name in names]


def why_not_run(test: str) -> str:
    """Why no step of ``.ci/run`` runs it; empty for one that runs."""
    file, _, name = test.partition("::")
    if not exists(test):
        return "there is no such test"
    facts = sources.facts(sources.ROOT / file, name)
    missing = sorted(package for package in facts.packages if extra_of(package) is None)
    reasons = [f"it is marked {mark}" for mark in sorted(facts.not_run)]
    return ", ".join([*reasons, *(f"no extra of pyproject.toml installs {package}" for package in missing)])


def where(test: str) -> str:
    """Its tier and the extra that it needs: ``launch (extra `notebook`)``; or what it is skipped for."""
    file, _, name = test.partition("::")
    if not exists(test):
        return "no such test"
    facts = sources.facts(sources.ROOT / file, name)
    tier = next(iter(sorted(facts.not_run)), facts.tier) if why_not_run(test) else facts.tier
    needed = ", ".join(f"`{extra}`" for extra in sorted(extras(test)))
    return f"{tier} (extra {needed})" if needed else tier


def extras(test: str) -> set[str]:
    """The extras besides ``test`` that it needs."""
    file, _, name = test.partition("::")
    found = (extra_of(package) for package in sources.facts(sources.ROOT / file, name).packages)
    return {extra for extra in found if extra}


def sorted_tiers(tests: list[str]) -> list[str]:
    """What ``where`` has of these tests, each once, quick tiers first."""
    order = {name: number for number, name in enumerate([*tiers.TIERS, *sources.NOT_RUN])}
    return sorted({where(test) for test in tests}, key=lambda one: (order.get(one.split()[0], -1), one))


def extra_of(package: str) -> str | None:
    """The extra that installs it; empty where that is ``test`` or none is needed, None where none does."""
    if package in sys.stdlib_module_names:
        return ""
    return _extras().get(COMES_WITH.get(package, package))


@functools.cache
def _extras() -> dict[str, str]:
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found: dict[str, str] = {}
    for extra, needed in {"": [*project["dependencies"], *extras["test"]], **extras}.items():
        for one in needed:
            name = re.split(r"[\s\[<>=;]", one)[0]
            found.setdefault(IMPORTED_AS.get(name, name.replace("-", "_")), extra)
    return found
