"""Shared fixtures: every test runs in a folder of its own, on one thread; the long ones where asked for."""

from __future__ import annotations

import pytest
import torch
from helpers import ranks


def pytest_addoption(parser):
    parser.addoption(
        "--soak", action="store_true", help="the long versions: full matrices, hundreds of kills"
    )


@pytest.fixture(scope="session")
def soak(request):
    """What takes this runs under ``--soak`` only."""
    if not request.config.getoption("--soak"):
        pytest.skip("long; --soak runs it")


def pytest_collection_modifyitems(config, items):
    """What is marked ``soak`` runs under ``--soak`` only, as what takes the fixture does."""
    if config.getoption("--soak"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="long; --soak runs it"))


def pytest_sessionfinish():
    ranks.close_server()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
