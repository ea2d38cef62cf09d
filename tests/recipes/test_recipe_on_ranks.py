"""``paceline fit vit-cifar10 trainer.strategy=... trainer.devices=2``: the recipe runs unchanged."""

from __future__ import annotations

import pytest
from helpers.ranks import run_ranks

from paceline import Run

MORE = ["fsdp", "hsdp", "deepspeed_stage_1", "deepspeed_stage_2"]
STRATEGIES = [
    "ddp",
    "deepspeed_stage_3",
    *(pytest.param(name, marks=pytest.mark.soak) for name in MORE),
]


def fit(folder, strategy: str, devices: int) -> Run:
    settings = {
        "preset": "tiny",
        "data": "digits",
        "model.depth": 2,
        "trainer.strategy": strategy,
        "trainer.devices": devices,
        "trainer.accelerator": "cpu",
        "trainer.global_batch_size": 64,
        "trainer.max_steps": 4,
        "trainer.log_every": 1,
        "trainer.limit_val_batches": 2,
        "trainer.validate_every": 2,
        "trainer.run_dir": folder,
    }
    command = ["fit", "vit-cifar10", *(f"{key}={value}" for key, value in settings.items())]
    done = run_ranks("paceline", devices, *command, folder=folder, seconds=120)
    assert "best val/accuracy" in done.stdout
    return Run(folder / "vit-cifar10" / "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("single"), "single", 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_recipe_runs_unchanged_under(strategy, alone, tmp_path):
    run = fit(tmp_path, strategy, 2)
    assert run.metrics["train/loss"].values == pytest.approx(alone.metrics["train/loss"].values, abs=1e-4)
    assert run.metrics["train/loss"].steps == [1, 2, 3, 4]
    assert run.latest is not None
    assert run.latest.name == "step-00000004"
