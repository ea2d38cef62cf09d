"""What strategy="auto" becomes, and that each strategy works alone, on one rank, in a new process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import Job
from torch import nn

from paceline import Trainer, TrainModule
from paceline.strategies import (
    DDP,
    FSDP,
    Environment,
    Single,
    auto,
    choose_strategy,
    make_strategy,
)
from paceline.strategies.auto import state_bytes

JOB = Path(__file__).with_name("options_job.py")
SECONDS = 120
job = load_job(JOB)
TRAINED = [name for name in job.ALONE if name != "alone-hsdp"]
# Each of these comes first in a process; the last one runs what is left behind its own.
FIRST = ["alone-ddp", "alone-fsdp", "alone-deepspeed_stage_3"]


def start(folder: Path, devices: int, names: list[str]) -> Job:
    return Job(JOB, devices, devices, folder, *names, folder=folder, seconds=SECONDS)


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    """What rank 0 saw of a case; cases of two ranks and of one rank each in jobs of their own."""
    folders: dict[bool, Path] = {}
    output: list[str] = []

    def of(name: str) -> dict:
        alone = name in job.ALONE
        if alone not in folders:
            folders[alone] = folder = tmp_path_factory.mktemp("alone" if alone else "chosen")
            if alone:
                rest = [n for n in job.ALONE if n not in FIRST]
                groups = [[first] for first in FIRST[:-1]] + [[FIRST[-1], *rest]]
                jobs = [start(folder, 1, names) for names in groups]
            else:
                jobs = [start(folder, 2, list(job.CHOSEN))]
            output.extend(one.wait().output for one in jobs)
        written = folders[alone] / f"{name}.0.pt"
        assert written.exists(), "\n".join(text[-2000:] for text in output)
        return torch.load(written, weights_only=False)

    return of


@pytest.fixture(scope="session")
def on_one_device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    found: dict[str, dict] = {}

    def of(name: str) -> dict:
        if name not in found:
            found[name] = job.observe(name, 1, folder, Single())
        return found[name]

    return of


def assert_equal(found: dict, expected: dict, tolerance: float) -> None:
    assert found["error"] is None
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", TRAINED)
def test_each_strategy_works_alone_and_equals_single(seen, on_one_device, name):
    tolerance = 1e-6 if "deepspeed" in name else 1e-12
    assert_equal(seen(name), on_one_device(name), tolerance)
    asked = name.removeprefix("alone-")
    assert seen(name)["strategy"] == ("single" if asked == "auto" else asked)


def test_hsdp_alone_says_that_one_rank_is_no_two_groups(seen):
    error = seen("alone-hsdp")["error"]
    assert not error.startswith("<class")
    assert "HSDP cannot split 1 rank" in error


# -- auto --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "auto-late"])
def test_auto_is_ddp_on_several_devices(seen, on_one_device, name):
    assert seen(name)["strategy"] == "ddp"
    assert "GiB" not in seen(name)["log"]
    assert_equal(seen(name), on_one_device(name), 1e-12)


@pytest.mark.parametrize("name", ["auto-too-large", "auto-late-too-large"])
def test_auto_is_fsdp_where_the_states_do_not_fit_and_says_why(seen, on_one_device, name):
    assert seen(name)["strategy"] == "fsdp"
    (line,) = [line for line in seen(name)["log"].splitlines() if "GiB" in line]
    assert "strategy fsdp" in line
    assert "gradients" in line
    assert seen(name)["seen"]["units"] == ["blocks.0", "blocks.1", "blocks.2"]
    assert_equal(seen(name), on_one_device(name), 1e-12)


class Line(TrainModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)

    def training_step(self, batch):
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_auto_is_single_on_one_device_however_little_it_has(monkeypatch):
    monkeypatch.setattr(auto, "device_memory", lambda device: 1)
    trainer = Trainer(accelerator="cpu", devices=1, max_steps=1, progress=False, checkpoint=False)
    assert type(trainer.strategy) is Single
    trainer.fit(Line(), [torch.ones(4, 2)])
    assert type(trainer.strategy) is Single


def test_make_strategy_takes_the_world():
    assert type(make_strategy("auto")) is Single
    assert type(make_strategy("auto", 2)) is DDP
    chosen = FSDP()
    assert make_strategy(chosen, 2) is chosen


@pytest.mark.parametrize(
    ("dtype", "trained", "expected"),
    [
        (torch.float32, True, 16 * 12),  # 4 bytes each: parameters, gradients and two moments
        (torch.float32, False, 4 * 12),
        (torch.bfloat16, True, 8 * 12),
        (torch.float64, True, 32 * 12),
    ],
)
def test_state_bytes_are_four_times_the_trained_parameters(dtype, trained, expected):
    module = nn.Linear(3, 3).to(dtype).requires_grad_(trained)
    assert state_bytes(module) == expected
    assert state_bytes(module.to("meta")) == expected


def test_state_bytes_count_a_tied_parameter_once():
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    assert state_bytes(module) == 16 * 9


def placed(device: str, ranks: int) -> SimpleNamespace:
    """A strategy's place, for a decision that computes nothing."""
    environment = Environment(torch.device(device), world_size=ranks, local_world_size=ranks)
    return SimpleNamespace(environment=environment, precision=SimpleNamespace(param_dtype=torch.float32))


@pytest.mark.parametrize(
    ("device", "there", "shards"),
    [
        (
            "cpu",
            2 * 16 * 12,
            True,
        ),  # the ranks of a machine share the host's memory, and states are not all
        ("cpu", 3 * 16 * 12, False),
        ("meta", 16 * 12, True),  # a device of its own for each rank
        ("meta", 2 * 16 * 12, False),
    ],
)
def test_states_must_leave_room_for_the_rest(monkeypatch, device, there, shards):
    monkeypatch.setattr(auto, "device_memory", lambda device: there)
    strategy = placed(device, 2)
    chosen, why = choose_strategy(strategy, nn.Linear(3, 3))
    assert (type(chosen) is FSDP) == shards
    assert (why is not None) == shards
    if not shards:
        assert chosen is strategy
