"""The trackers write into a folder of the tests, and none of their processes stays."""

from __future__ import annotations

import sys

import psutil
import pytest
from helpers import trackers


@pytest.fixture(scope="module", autouse=True)
def own_store(tmp_path_factory):
    """Trackio reads its folder once, at its import; the service of wandb stays until the process ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WANDB_SERVICE", raising=False)
        folder = tmp_path_factory.mktemp("trackers")
        trackers.isolate(folder, patch.setenv)
        yield folder
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
    assert not [one.name() for one in psutil.Process().children() if "wandb" in one.name()]
