"""``--rest``: run what the README's command leaves out, in an environment with every extra.

A run notes what it skips (for want of a package, mostly) in pytest's cache. A run with ``--rest`` then
takes those tests, the launch tier, and what is marked ``soak(ci=True)``.
"""

from __future__ import annotations

from typing import Any

import pytest

_KEY = "paceline/skipped"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rest",
        action="store_true",
        help='what `-m "not launch"` leaves out: the launch tier, and what it skipped (needs every extra)',
    )


def is_run(item: pytest.Item) -> bool:
    """Whether a test that is marked ``soak`` runs: under ``--soak``, and in CI where its mark says so."""
    mark = item.get_closest_marker("soak")
    if mark is None or item.config.getoption("--soak"):
        return True
    return bool(mark.kwargs.get("ci")) and item.config.getoption("--rest")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the rest, where it is asked for.

    Raises:
        pytest.UsageError: where no run has noted what it skipped.
    """
    if not config.getoption("--rest"):
        return
    noted = _cache(config).get(_KEY, None)
    if noted is None:
        raise pytest.UsageError('--rest: no run has noted its skips; run `pytest -m "not launch"` first')
    skipped = set(noted)
    kept, left = [], []
    for item in items:
        skips = {item.nodeid, item.nodeid.partition("::")[0]} & skipped
        (kept if skips or item.get_closest_marker("launch") else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _cache(config: pytest.Config) -> Any:
    if not hasattr(config, "cache"):
        raise pytest.UsageError("--rest: needs pytest's cache")
    return config.cache


class Skips:
    """Notes the tests and files that a run skips; workers tell theirs to the process that started them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._found = config, set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._found.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._found.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        self._found.update(getattr(node, "workeroutput", {}).get(_KEY, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_KEY] = sorted(self._found)
        elif not self._config.getoption("--rest") and self._is_of_all() and hasattr(self._config, "cache"):
            self._config.cache.set(_KEY, sorted(self._found))

    def _is_of_all(self) -> bool:
        return self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
