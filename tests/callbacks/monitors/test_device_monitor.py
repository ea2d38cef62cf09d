"""DeviceMonitor: values of the host, of a device that is planted, and of several ranks."""

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.callbacks import DeviceMonitor

HOST = {"host/cpu_percent", "host/memory_percent", "host/process_rss_gb", "host/disk_free_gb"}
UUID = "a5f0b5c6-0000-1111-2222-333344445555"
GB = 2**30


def watched(monitor, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    trainer = Trainer(callbacks=monitor, max_epochs=2, **usual, **settings)
    trainer.fit(Net(), data())
    return trainer


# -- the host ------------------------------------------------------------------------------------


def test_values_of_the_host(capsys):
    found = watched(DeviceMonitor(every=2)).metrics
    assert {name for name in found if name.startswith(("host/", "device/"))} == HOST
    assert found["host/process_rss_gb"] == pytest.approx(psutil.Process().memory_info().rss / GB, rel=0.2)
    assert found["host/disk_free_gb"] == pytest.approx(psutil.disk_usage(".").free / GB, rel=0.2)
    assert 0 < found["host/memory_percent"] <= 100
    assert "NVML" not in capsys.readouterr().out


def test_without_a_folder_there_is_no_disk():
    found = watched(DeviceMonitor(every=2), run_dir=None).metrics
    assert HOST - set(found) == {"host/disk_free_gb"}


def test_both_may_be_switched_off():
    assert not HOST & set(watched(DeviceMonitor(every=2, host=False)).metrics)


# -- a planted device --------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


class Library(SimpleNamespace):
    """A pynvml of two devices, of which the second one is ours."""

    NVML_TEMPERATURE_GPU, NVMLError = 0, NVMLError
    opened = 0

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != f"GPU-{UUID}":
            raise NVMLError("not found")
        return "second"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu={"second": 87}[handle])

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return {("second", 0): 65}[handle, sensor]

    def nvmlDeviceGetPowerUsage(self, handle):
        raise NVMLError("not supported")

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total={"second": 80 * GB}[handle])


class Ranks:
    """A trainer on a CUDA device that has the values of a second rank, too."""

    def __init__(self, other=None):
        self.other, self.global_step, self.folder = other, 4, None
        self.strategy = SimpleNamespace(device=torch.device("cuda", 0))
        self.ranks = SimpleNamespace(all_gather=self.all_gather)
        self.said, self.published = [], {}
        self.log_line, self.publish = self.said.append, self.published.update

    def all_gather(self, mine):
        return [mine, *([] if self.other is None else [self.other])]

    def run(self, monitor):
        monitor.on_fit_start(self)
        monitor.on_step_end(self, [])
        monitor.on_teardown(self, "fit")
        return self.published


@pytest.fixture
def cuda(monkeypatch):
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    for name, gigabytes in (("memory_allocated", 2), ("memory_reserved", 3), ("max_memory_allocated", 2.5)):
        monkeypatch.setattr(torch.accelerator, name, lambda device, n=gigabytes: n * GB)
    return library


def test_values_of_a_device(cuda):
    ranks = Ranks()
    assert ranks.run(DeviceMonitor(every=2, host=False)) == {
        "device/memory_allocated_gb": 2,
        "device/memory_reserved_gb": 3,
        "device/memory_peak_gb": 2.5,
        "device/utilization_percent": 87,
        "device/temperature_c": 65,
        "device/memory_total_gb": 80,
    }  # no power, which this one does not support
    assert (cuda.opened, ranks.said) == (0, [])


def test_values_of_several_ranks_become_one(cuda):
    other = {
        "device/memory_allocated_gb": 1.0,
        "device/memory_peak_gb": 9.0,
        "device/utilization_percent": 13.0,
        "device/temperature_c": 70.0,
        "device/power_w": 300.0,
    }
    found = Ranks(other).run(DeviceMonitor(every=2, host=False))
    assert found == {
        "device/memory_allocated_gb": 2,
        "device/memory_reserved_gb": 3,
        "device/memory_peak_gb": 9,
        "device/utilization_percent": 50,
        "device/temperature_c": 70,
        "device/memory_total_gb": 80,
        "device/power_w": 300,
    }


def test_the_lowest_free_disk_space_counts(cuda):
    ranks = Ranks({"host/disk_free_gb": -1.0, "host/memory_percent": 101.0})
    ranks.folder = Path()
    found = ranks.run(DeviceMonitor(every=2, device=False))
    assert (found["host/disk_free_gb"], found["host/memory_percent"]) == (-1, 101)
    assert not [name for name in found if name.startswith("device/")]


def test_it_publishes_as_often_as_it_is_set(cuda):
    assert not Ranks().run(DeviceMonitor(every=3, host=False))


def test_a_missing_library_is_reported(cuda, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    ranks = Ranks()
    found = ranks.run(DeviceMonitor(every=2, host=False))
    assert found["device/memory_allocated_gb"] == 2
    (line,) = ranks.said
    assert "pip install 'paceline[gpu]'" in line
    quiet = Ranks()
    quiet.run(DeviceMonitor(every=2, device=False))
    assert not quiet.said


def test_a_device_that_the_library_does_not_know_is_reported(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="other"))
    ranks = Ranks()
    ranks.run(DeviceMonitor(every=2))
    assert "NVMLError: not found" in ranks.said[0]
    assert cuda.opened == 0


def test_all_arguments_that_are_not_right_are_in_one_error():
    with pytest.raises(PacelineError, match="DeviceMonitor: 3 invalid arguments"):
        DeviceMonitor(every="1ep", host=1, device="yes")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_of_a_real_device():
    trainer = Trainer(callbacks=DeviceMonitor(every=2), progress=False, devices=1, max_epochs=1)
    trainer.fit(Net(), data())
    assert 0 < trainer.metrics["device/memory_allocated_gb"] <= trainer.metrics["device/memory_peak_gb"]
    pytest.importorskip("pynvml")
    assert trainer.metrics["device/memory_total_gb"] > trainer.metrics["device/memory_peak_gb"]
    assert 0 < trainer.metrics["device/temperature_c"] < 120
