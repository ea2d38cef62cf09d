"""What is reported of accelerators, with planted ones."""

import sys
from types import SimpleNamespace

import pytest
import torch

from paceline.strategies.machine import backends, device_report


@pytest.fixture
def two_devices(monkeypatch):
    properties = SimpleNamespace(name="H100", multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(device_report, "accelerator_here", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(device_report, "memory_of", lambda index: (10, 80))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: True)


def test_each_device_with_its_memory(two_devices):
    first = {"device": "cuda:0", "name": "H100", "processors": 132, "capability": "9.0"}
    first |= {"memory": 80, "free": 10}
    assert device_report.devices_here() == [first, first | {"device": "cuda:1"}]


def test_devices_that_this_process_does_not_use_are_only_counted(two_devices):
    assert device_report.devices_here(initialise=False) == [{"device": "cuda:0"}, {"device": "cuda:1"}]
    assert device_report.peer_access(initialise=False) == {}


def test_how_devices_reach_each_other(two_devices, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_report.peer_access() == {"0 and 1": "direct"}

    class NVMLError(Exception):
        pass

    def state(handle, link):
        if link >= 4:
            raise NVMLError
        return 1

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetNvLinkState=state,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert device_report.peer_access() == {"0 and 1": "direct", "NVLinks of 0": "4", "NVLinks of 1": "4"}


def test_no_accelerator(monkeypatch):
    monkeypatch.setattr(device_report, "accelerator_here", lambda: None)
    assert (device_report.devices_here(), device_report.peer_access()) == ([], {})


def test_strategies_for_a_check_are_those_that_are_installed(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: name)
    assert backends.usual_strategies() == ["ddp", "fsdp", "deepspeed_stage_2"]
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends.usual_strategies() == ["ddp", "fsdp"]
