"""Shared fixtures: every test runs in a folder of its own, on one thread; the long ones where asked for."""

import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import cost, left_out, older_torch, ranks, tiers
from helpers.collector import freeze_imports, freeze_more
from helpers.once import ask_once

from paceline.callbacks.pictures import curves
from paceline.common.lazy_names import uncollected_imports
from paceline.trainer import rng


def pytest_addoption(parser):
    parser.addoption(
        "--soak", action="store_true", help="the long versions: full matrices, hundreds of kills"
    )
    left_out.add_option(parser)
    cost.add_option(parser)


@pytest.fixture(scope="session")
def soak(request):
    """What takes this runs under ``--soak`` only."""
    if not request.config.getoption("--soak"):
        pytest.skip("long; --soak runs it")


def pytest_configure(config):
    tiers.watch()
    if not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", None):
        config.add_cleanup(ranks.share_server())
    config.pluginmanager.register(left_out.Skips(config))
    cost.keep_order(config)
    if config.getoption("--cost") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(cost.Recorder(Path(config.getoption("--cost"))))


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config, items):
    """Each test has a tier; what is marked ``soak`` runs under ``--soak``, and in CI where it says so."""
    for item in items:  # workers of pytest-xdist have to find the same names
        assert " at 0x" not in item.nodeid, f"give its cases ids: {item.nodeid}"
    tiers.mark(items)
    left_out.select(config, items)
    cost.begin_with_the_longest(config, items)
    older_torch.skip(items)
    for item in items:
        if not left_out.is_run(item):
            item.add_marker(pytest.mark.skip(reason="long; --soak runs it"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with uncollected_imports():  # of 300 files, and all that they import
        return (yield)


def pytest_collection_finish():
    ask_once()
    freeze_imports()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    tiers.begin(item)
    freeze_more(item.path)
    rng._last_given.clear()  # for the fixtures of several tests too
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return (yield)
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)  # torch's launchers leave theirs
        tiers.begin(None)


def pytest_sessionfinish():
    ranks.close_server()


@pytest.fixture(autouse=True)
def _own_folder(_no_variable_is_left, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _no_variable_is_left():
    """What names a job or a launcher would be believed by tests that come later."""
    before = {name for name in os.environ if name.startswith("PACELINE_")}
    yield
    left = {name for name in os.environ if name.startswith("PACELINE_")} - before
    for name in left:
        del os.environ[name]
    assert not left, f"set in this process, and not removed: {left}"


@pytest.fixture(autouse=True)
def _no_seed_given():
    """What a test before called ``seed_everything`` with is no default of this one."""
    rng._last_given.clear()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_pictures():
    """A picture of each fit takes longer than most tests; ``pictures`` has them drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "start_drawing", lambda *arguments: None)
        yield


@pytest.fixture
def pictures(monkeypatch):
    """Fits of this test draw ``curves.png``, in this process."""
    monkeypatch.setattr(curves, "start_drawing", curves.draw_or_log)


@pytest.fixture
def group_ends():
    """A strategy over a process group joins one of one rank, which later tests must not find."""
    yield
    torch.distributed.destroy_process_group()
