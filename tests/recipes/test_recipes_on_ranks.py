"""Recipes run unchanged on two ranks (``trainer.strategy=ddp trainer.devices=2``), to the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.ranks import run_ranks
from helpers.recipes import skip_without_packages

from paceline import Run
from paceline.recipes import RECIPES

pytestmark = pytest.mark.launch  # for its length
STEPS = 4
# In test_language_models_on_ranks.py, under sharding strategies; and classifiers, as vit-cifar10 is one.
OF_LANGUAGE = ("dpo", "kto", "llm-distill", "llm-finetune", "reward-model")
SHOWN_BY_OTHERS = (*OF_LANGUAGE, "digits", "resnet-cifar10")
MORE = ["fsdp", "hsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"]
STRATEGIES = [
    "ddp",
    *(pytest.param(name, marks=pytest.mark.soak) for name in MORE),
]
# Fewer layers and samples, for a test. A loader's own batch is what one rank takes at once.
SMALLER = {
    "classify-text": {"length": 64, "trainer.global_batch_size": 16, "batch_size": 8},
    "diffusion": {"widths": "[8,16]", "per_class": 2, "sampling_steps": 4, "batch_size": 16, "workers": 0},
    "digits": {"trainer.global_batch_size": 64},
    "distill": {"widths": "[8,16]", "batch_size": 32, "workers": 0},
    "dpo": {"length": 64, "trainer.global_batch_size": 8, "batch_size": 2, "export": "false"},
    "finetune-vision": {"batch_size": 16, "trainer.global_batch_size": 64, "workers": 0},
    "gan": {"width": 8, "per_class": 2, "batch_size": 16, "workers": 0},
    "gpt": {"model.depth": 2, "length": 32, "trainer.global_batch_size": 8, "batch_size": 4, "workers": 0},
    "kto": {"length": 64, "trainer.global_batch_size": 16, "batch_size": 4, "export": "false"},
    "llm-distill": {"length": 128, "trainer.global_batch_size": 8, "batch_size": 2, "export": "false"},
    "llm-finetune": {"length": 128, "trainer.global_batch_size": 8, "batch_size": 2},
    "multi-task": {"widths": "[8,16]", "batch_size": 32, "workers": 0},
    "neural-field": {"width": 16, "waves": 16, "batch_size": 256},
    "reinforce": {"batch_size": 8, "held_out": 8, "steps": STEPS},
    "resnet-cifar10": {"widths": "[8,16]"},
    "reward-model": {"length": 64, "trainer.global_batch_size": 8, "batch_size": 2, "export": "false"},
    "simclr": {"widths": "[8,16]", "batch_size": 64, "workers": 0},
    "tabular": {"width": 8, "dropout": 0},  # masks are of each rank's own generator
    "vit-cifar10": {"data": "digits", "model.depth": 2, "trainer.global_batch_size": 64, "workers": 2},
}


def fit(
    folder, name: str, strategy: str, devices: int, precision: str = "32", teacher: Path | None = None
) -> Run:
    """Run a recipe.

    Args:
        teacher: The folder of its teacher's run, where it has one.
    """
    figure = RECIPES[name].figure
    settings = SMALLER[name] | {
        "trainer.precision": precision,
        "trainer.strategy": strategy,
        "trainer.devices": devices,
        "trainer.accelerator": "cpu",
        "trainer.max_steps": STEPS,
        "trainer.log_every": 1,
        "trainer.limit_val_batches": 2,
        "trainer.validate_every": 2,
        "trainer.run_dir": folder,
    }
    if figure.teacher:
        settings["teacher"] = teacher
    if figure.preset:
        settings = {"preset": figure.preset} | settings
    command = ["fit", name, *(f"{key}={value}" for key, value in settings.items())]
    transformers = "transformers" in RECIPES[name].needs
    more = {"transformers": transformers, "recipes": not transformers}
    done = run_ranks("paceline", devices, *command, folder=folder, seconds=120, **more)
    assert "best val/" in done.stdout
    return Run(folder / name / "1")


class Alone:
    """Runs on one device, each made once."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder, self._found = new_folder, dict[tuple[str, str], Run]()

    def __call__(self, name: str, precision: str = "32") -> Run:
        if (name, precision) not in self._found:
            teacher = self.teacher_of(name, precision)
            run = fit(self._new_folder(name), name, "single", 1, precision, teacher)
            self._found[name, precision] = run
        return self._found[name, precision]

    def teacher_of(self, name: str, precision: str) -> Path | None:
        teacher = RECIPES[name].figure.teacher
        return self(teacher, precision).folder if teacher else None


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return Alone(tmp_path_factory.mktemp)


def same(run: Run, alone: Run, metric: str, tolerance: float) -> None:
    losses = alone.metrics["train/loss"]
    assert run.metrics["train/loss"].values == pytest.approx(losses.values, abs=tolerance)
    assert run.metrics["train/loss"].steps == losses.steps == [1, 2, 3, 4]
    assert len(set(losses.values)) == STEPS
    assert run.metrics[metric].values == pytest.approx(alone.metrics[metric].values, abs=1e-6)
    assert run.latest is not None
    assert run.latest.name == "step-00000004"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_recipe_runs_unchanged_under(strategy, alone, tmp_path):
    same(fit(tmp_path, "vit-cifar10", strategy, 2), alone("vit-cifar10"), "val/accuracy", 1e-4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name in SHOWN_BY_OTHERS else ())
        for name in sorted(set(RECIPES) - {"vit-cifar10"})
    ],
)
def test_two_ranks_give_the_numbers_of_one_device(name, alone, tmp_path):
    skip_without_packages(name)
    one = alone(name, "64")
    two = fit(tmp_path, name, "ddp", 2, "64", alone.teacher_of(name, "64"))
    same(two, one, RECIPES[name].figure.metric, 1e-6)  # a loss may be in float32 all the same


@pytest.mark.parametrize(
    "name", ["diffusion", pytest.param("neural-field", marks=pytest.mark.soak), "reinforce"]
)
def test_what_is_not_a_batch_goes_through_sharded_weights_too(name, alone, tmp_path):
    skip_without_packages(name)
    two, one = fit(tmp_path, name, "fsdp", 2, "64"), alone(name, "64")
    same(two, one, RECIPES[name].figure.metric, 1e-6)


def test_every_recipe_is_among_them():
    assert set(SMALLER) == set(RECIPES)
