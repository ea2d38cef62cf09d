"""What the tests of the feeds share."""

import gc
import multiprocessing

import pytest


@pytest.fixture
def no_worker_stays():
    yield
    if multiprocessing.active_children():
        gc.collect()  # slow: only where something may be waiting for it
    left = multiprocessing.active_children()
    for process in left:
        process.terminate()
    assert not left
