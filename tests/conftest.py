"""Shared fixtures: every test runs in a folder of its own, on one thread."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
