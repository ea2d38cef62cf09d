"""A checkpoint of one precision is read by every other: weights and moments are cast, exactly."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from torch.utils.data import DataLoader

from paceline import Trainer
from paceline.callbacks import Callback
from paceline.strategies import make_precision

JOB = Path(__file__).with_name("precision_job.py")
PRECISIONS = ("32", "64", "bf16", "fp16", "bf16-true", "fp16-true")


class First(Callback):
    """The weights and moments before the first step."""

    def on_fit_start(self, trainer):
        self.weights, self.moments = weights_and_moments(trainer)


def weights_and_moments(trainer):
    named = dict(trainer.module.named_parameters())
    state = trainer.optimizers[0].state
    weights = {name: p.detach().clone() for name, p in named.items()}
    return weights, {name: state[p]["momentum_buffer"].clone() for name, p in named.items() if state}


def fit(folder, precision, steps, *callbacks, resume=None):
    """Without a folder it leaves nothing."""
    job = load_job(JOB)
    trainer = Trainer(
        accelerator="cpu",
        precision=precision,
        max_steps=steps,
        progress=False,
        loggers=False,
        run_dir=folder,
        name="n",
        checkpoint=folder is not None,
        callbacks=list(callbacks),
    )
    trainer.fit(job.Language("sgd"), DataLoader(job.rows(), 8), resume=resume)
    return trainer


@pytest.mark.parametrize("saved", PRECISIONS)
def test_weights_and_moments_are_cast(saved, tmp_path):
    run = fit(tmp_path, saved, 2)
    weights, moments = weights_and_moments(run)
    for other in PRECISIONS:
        first = First()
        trainer = fit(None, other, 3, first, resume=run.folder)
        assert trainer.global_step == 3
        dtype = make_precision(other).param_dtype
        for expected, found in ((weights, first.weights), (moments, first.moments)):
            for name, value in expected.items():
                assert found[name].dtype == dtype
                assert torch.equal(found[name], value.to(dtype)), name
