"""Throughput: rates by a clock that only user code moves, FLOPs by arithmetic, peaks by the table."""

import time
from types import SimpleNamespace

import pytest
import torch
from helpers.loggers import NO_DEFAULTS
from helpers.planted_clock import PlantedClock, TimedNet, fit
from helpers.stops import StopsAt
from torch.utils import flop_counter

from paceline import PacelineError
from paceline.callbacks import Checkpoint, Throughput
from paceline.callbacks.monitors.peak_flops import peak_flops

# Of a sample, forward and backward: the first layer's input needs no gradient.
FLOPS = 2 * 3 * 16 * 2 + 2 * 16 * 1 * 3
RATES = ("steps_per_second", "data_wait_share", "tokens_per_second", "tflops_per_device", "mfu")


@pytest.fixture
def clock(monkeypatch):
    clock = PlantedClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.fixture
def counted(monkeypatch):
    """The steps in which FLOPs were counted."""
    counters = []

    class Counter(flop_counter.FlopCounterMode):
        def __enter__(self):
            counters.append(self)
            return super().__enter__()

    monkeypatch.setattr(flop_counter, "FlopCounterMode", Counter)
    return counters


def rates(trainer):
    return {name: trainer.metrics.get(f"perf/{name}") for name in RATES}


def flops_of(speed):
    return speed.state_dict()["flops_per_sample"]


# -- rates ---------------------------------------------------------------------------------------


def test_rates_are_those_of_a_calculation_by_hand(clock):
    speed = Throughput(every=2, window=10, tokens=torch.numel, peak_flops=1000.0)
    module = TimedNet(clock, step=lambda number: 10 if number > 2 else 500)
    trainer = fit(clock, speed, Checkpoint(every=1), module=module)  # 4 steps, two in each epoch
    assert rates(trainer) == pytest.approx(
        {
            "steps_per_second": 1 / 12,
            "data_wait_share": 2 / 12,
            "tokens_per_second": 6 / 12,
            "tflops_per_device": FLOPS * 2 / 12 / 1e12,
            "mfu": FLOPS * 2 / 12 / 1000,
        }
    )


def test_rates_are_of_the_last_steps(clock):
    for window, seconds in ((2, 5 + 6), (3, 4 + 5 + 6), (None, 4 + 5 + 6)):
        module = TimedNet(clock, step=lambda number: number)
        speed = Throughput(every=3, window=window, flops=False)
        trainer = fit(clock, speed, module=module, samples=6, validate_every=None)
        steps = window or 3
        assert rates(trainer)["steps_per_second"] == pytest.approx(steps / (seconds + 2 * steps))


def test_it_publishes_as_often_as_it_is_set(clock):
    seen = []
    trainer = fit(
        clock, Throughput(every="2st", flops=False), loggers=[rows_into(seen), *NO_DEFAULTS], samples=10
    )
    assert [row["step"] for row in seen if "perf/steps_per_second" in row] == [2, 4, 6, 8, 10]
    assert "perf/mfu" not in trainer.metrics
    assert sum("perf/samples_per_second" in row for row in seen) == 1  # the Trainer's, after step 1


def rows_into(seen):
    from paceline.callbacks import Logger

    class Rows(Logger):
        background = False

        def write(self, row):
            seen.append(row)

    return Rows()


@pytest.mark.parametrize(
    ("tokens", "batch"),
    [
        ("ids", {"ids": torch.ones(2, 5), "other": torch.ones(2, 9)}),
        ("ids", SimpleNamespace(ids=torch.ones(2, 5))),
        (1, (torch.ones(2, 9), torch.ones(2, 5))),
        (lambda batch: torch.tensor(10), None),
    ],
)
def test_tokens_by_key_attribute_position_or_function(tokens, batch):
    speed = Throughput(tokens=tokens, flops=False)
    trainer = SimpleNamespace(global_step=0, counters=SimpleNamespace(samples=0))
    speed.on_step_start(trainer, [batch, batch, batch])
    speed.on_step_end(trainer, ["of a micro-batch", "of another"])  # the third one had no samples
    assert float(speed._marks[-1].tokens) == 20


# -- FLOPs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"precision": "bf16"}])
def test_flops_are_counted_once_by_sample(counted, settings):
    speed = Throughput(every=1)
    fit(PlantedClock(), speed, samples=12, **settings)
    assert flops_of(speed) == FLOPS
    assert len(counted) == 1


def test_counting_changes_no_weight():
    found = []
    for callbacks in ([], [Throughput(every=1)]):
        torch.manual_seed(0)
        module = TimedNet(PlantedClock())
        fit(PlantedClock(), *callbacks, module=module)
        found.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*found)


def test_a_compiled_module_is_counted_in_a_step_that_is_not(counted):
    compiled, called = [], []

    def backend(graph, inputs):
        compiled.append(graph)
        return lambda *args: called.append(1) or graph(*args)

    speed = Throughput(every=1)
    fit(PlantedClock(), speed, samples=6, validate_every=None, compile={"backend": backend})
    assert flops_of(speed) == FLOPS
    assert len(called) == 5 * len(compiled)  # 6 steps
    assert len(compiled) == 1


def test_a_resumed_run_has_counted_already(counted):
    first, second = Throughput(every=1), Throughput(every=1)
    fit(PlantedClock(), first, StopsAt(2), Checkpoint())
    trainer = fit(PlantedClock(), second, Checkpoint(), resume="latest")
    assert len(counted) == 1
    assert flops_of(second) == flops_of(first) == FLOPS
    assert trainer.metrics["perf/tflops_per_device"] > 0


def test_a_resumed_run_that_counts_no_longer_has_no_flops():
    fit(PlantedClock(), Throughput(every=1), StopsAt(2), Checkpoint())
    speed = Throughput(every=1, flops=False)
    fit(PlantedClock(), speed, Checkpoint(), resume="latest")
    assert speed.state_dict() == {}


def test_a_resumed_run_without_it_before_counts_in_its_first_step(counted):
    speed = Throughput()
    fit(PlantedClock(), StopsAt(3), Checkpoint())
    fit(PlantedClock(), speed, Checkpoint(), resume="latest")
    assert flops_of(speed) == FLOPS


def test_after_an_error_nothing_is_counted(counted):
    speed = Throughput()
    with pytest.raises(ValueError, match="enough"):
        fit(PlantedClock(), speed, module=TimedNet(PlantedClock(), fails_at=1))
    (counter,) = counted
    before = counter.get_total_flops()
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert counter.get_total_flops() == before > 0


# -- the device's peak -----------------------------------------------------------------------------


def test_a_device_without_a_known_peak_is_reported_once(capsys):
    trainer = fit(PlantedClock(), Throughput(every=1))
    assert capsys.readouterr().out.count("no perf/mfu: the peak of cpu in float32 is not known; give") == 1
    assert "perf/mfu" not in trainer.metrics
    fit(PlantedClock(), Throughput(every=1, flops=False))
    fit(PlantedClock(), Throughput(every=1, peak_flops=1e12))
    assert "perf/mfu" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA H100 NVL", 835e12, 60e12),
        ("NVIDIA H200", 989e12, 67e12),
        ("NVIDIA B200", 2250e12, 75e12),
        ("NVIDIA L4", 121e12, 30.3e12),
        ("Tesla T4", None, 8.1e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA L40S", None, None),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
    ],
)
def test_peaks(name, bf16, fp32):
    assert peak_flops(name, torch.bfloat16) == bf16
    assert peak_flops(name, torch.float32) == fp32
    assert peak_flops(name, torch.float64) is None


def test_the_peak_of_float32_is_that_of_tf32_where_it_is_used():
    torch.set_float32_matmul_precision("high")
    try:
        assert peak_flops("NVIDIA A100-PCIE-40GB", torch.float32) == 156e12
        assert peak_flops("Tesla T4", torch.float32) == 8.1e12
    finally:
        torch.set_float32_matmul_precision("highest")


def test_all_arguments_that_are_not_right_are_in_one_error():
    with pytest.raises(PacelineError, match="Throughput: 5 invalid arguments"):
        Throughput(every="1ep", window=0, tokens=1.5, flops="yes", peak_flops=0)
