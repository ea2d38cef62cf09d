"""The recipe to begin with: learned, and the same as ``TrainModule.of`` of its parts."""

from functools import partial

import torch
from torch.nn import functional as F

from paceline import Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.recipes.digits import PRESETS, Config, accuracy, build, network
from paceline.schedules import Cosine

QUIET = {"run_dir": None, "progress": False}


def test_the_module_written_out_is_that_of_its_parts():
    written = build(Config(**PRESETS["quick"], trainer=QUIET))
    torch.manual_seed(0)
    module = TrainModule.of(
        network(64, 2),
        F.cross_entropy,
        partial(torch.optim.AdamW, lr=3e-3),
        Cosine(),
        metrics={"accuracy": accuracy},
    )
    trainer = Trainer(max_epochs=2, callbacks=[Checkpoint(monitor="val/accuracy")], **QUIET)
    trainer.fit(module, written.train, written.val)
    written.fit()
    for ours, theirs in zip(written.module.model.parameters(), module.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert written.trainer.metrics["val/accuracy"] == trainer.metrics["val/accuracy"]


def test_most_digits_are_learned(tmp_path):
    run = build(Config(epochs=5, trainer={"run_dir": str(tmp_path), "progress": False})).fit()
    assert isinstance(run, Run)
    assert max(run.metrics["val/accuracy"].values) > 0.95
    assert run.best is not None
