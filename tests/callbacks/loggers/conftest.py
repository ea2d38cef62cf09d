"""The trackers write into a folder of the tests, and none of their processes stays."""

import sys

import psutil
import pytest
from helpers import trackers


@pytest.fixture(scope="session")
def tracker_folder(tmp_path_factory):
    """One for each process: trackio reads the name of its folder once, at its import."""
    return tmp_path_factory.mktemp("trackers")


@pytest.fixture(scope="module", autouse=True)
def own_store(tracker_folder):
    """The service of wandb stays until the process ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WANDB_SERVICE", raising=False)
        trackers.isolate(tracker_folder, patch.setenv)
        yield tracker_folder
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
    assert not [one.name() for one in psutil.Process().children() if "wandb" in one.name()]
