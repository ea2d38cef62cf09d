"""At most four frames of ours between ``fit`` and ``training_step``, and few calls in a step.

User errors keep their traceback.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from helpers.trainers import quiet
from torch import nn

import paceline
from paceline import Trainer, TrainModule

ROOT = str(Path(paceline.__file__).parent)


def frames_above() -> list[str]:
    names, frame = [], sys._getframe(1)
    while frame is not None:
        names.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return names


def is_ours(file: str) -> bool:
    # A virtual environment may lie in the package's own folder.
    return file.startswith(ROOT) and "/tests/" not in file and "site-packages" not in file


def ours_below_fit(stack) -> int:
    """How many frames of ours stand between ``fit`` and the step."""
    ours = [name for file, name in stack if is_ours(file)]
    return ours.index("fit")


class Counting(TrainModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.stack = []

    def training_step(self, batch):
        self.stack = frames_above()
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("precision", ["32", "bf16", "fp16", "64"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_at_most_four_frames(precision, accumulate, tmp_path):
    module = Counting()
    quiet(precision=precision, accumulate=accumulate, run_dir=tmp_path).fit(module, [torch.randn(4, 2)] * 3)
    assert ours_below_fit(module.stack) <= 4, module.stack


class CallCount(Counting):
    """Counts our calls between two calls of ``training_step``, by name."""

    first, last = 511, 531  # no log point lies between, and no step at which Checks looks

    def __init__(self):
        super().__init__()
        self.calls, self.steps = Counter(), 0

    def training_step(self, batch):
        self.steps += 1
        if self.steps in (self.first, self.last):
            sys.setprofile(self.count if self.steps == self.first else None)
        return self.layer(batch).mean()

    def count(self, frame, event, argument):
        if event == "call" and is_ours(frame.f_code.co_filename):
            self.calls[frame.f_code.co_qualname] += 1


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"checkpoint": False, "record": False}, 18),
        ({"checkpoint": True, "record": False}, 18),
        ({"checkpoint": False, "record": False, "clip_grad_norm": 1.0}, 23),
        ({"checkpoint": False, "record": False, "accumulate": 2}, 59),  # two batches are read, too
    ],
    ids=str,
)
def test_calls_in_a_step(settings, most, tmp_path):
    module = CallCount()
    try:
        quiet(**settings, run_dir=tmp_path).fit(module, [torch.randn(4, 2)] * module.last)
    finally:
        sys.setprofile(None)
    steps = (module.last - module.first) / settings.get("accumulate", 1)
    assert module.calls.total() / steps <= most, module.calls


def test_an_error_of_the_step_arrives_as_it_was_raised(tmp_path):
    class Failing(Counting):
        def training_step(self, batch):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        Trainer(accelerator="cpu", progress=False, run_dir=tmp_path).fit(Failing(), [torch.randn(4, 2)])
    assert caught.traceback[-1].name == "training_step"


ON_RANKS = """
from pathlib import Path

from helpers.jobs import load_job

frames = load_job(Path({file!r}))
for strategy in {strategies}:
    for precision in ("32", "bf16"):
        module = frames.Counting()
        frames.Trainer(
            strategy=strategy, accelerator="cpu", devices=1, precision=precision, progress=False,
            loggers=False, checkpoint=False,
        ).fit(module, [frames.torch.randn(4, 2)] * 3)
        print(strategy, precision, frames.ours_below_fit(module.stack))
"""


def test_at_most_four_frames_under_every_strategy(tmp_path):
    strategies = ["ddp", "fsdp", *(f"deepspeed_stage_{stage}" for stage in range(4))]
    script = tmp_path / "script.py"
    script.write_text(ON_RANKS.format(file=__file__, strategies=strategies))
    done = run_ranks(script, 1, folder=tmp_path, seconds=120, check=False)
    found = [line.split() for line in done.stdout.splitlines() if line.split()[0] in strategies]
    assert len(found) == 2 * len(strategies), done.output
    assert [line for line in found if int(line[2]) > 4] == []
