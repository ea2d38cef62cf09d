"""Devices by number, on a machine with four accelerators that is made up."""

from __future__ import annotations

import pytest
import torch

from paceline import PacelineError
from paceline.strategies.machine.devices import find_ids


@pytest.fixture(autouse=True)
def four(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("devices", "ids"),
    [
        ("auto", [0, 1, 2, 3]),
        (-1, [0, 1, 2, 3]),
        (4, [0, 1, 2, 3]),
        ("2", [0, 1]),
        ([3], [3]),
        ("1,3", [1, 3]),
    ],
)
def test_devices_are_chosen_by_count_and_by_number(devices, ids):
    assert find_ids("cuda", devices) == ids


@pytest.mark.parametrize("devices", [5, [4], "0,4"])
def test_a_device_that_is_not_there_is_refused(devices):
    with pytest.raises(PacelineError, match="more cuda devices were asked for") as raised:
        find_ids("cuda", devices)
    assert "4 of them: ids [0, 1, 2, 3]" in str(raised.value)


def test_a_number_on_a_cpu_is_a_process():
    assert find_ids("cpu", "auto") == [0]
    assert find_ids("cpu", 8) == [*range(8)]
