"""What a test imports is found in its own folder, and no longer than it lasts."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
