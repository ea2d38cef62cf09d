"""fp32_precision and channels_last: set for the time of a run, on what computes, and put back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.ranks import run_cases
from helpers.trainers import quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule

JOB = Path(__file__).with_name("channels_job.py")


def settings() -> list[str]:
    backends = torch.backends
    places = (
        backends,
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.matmul,
    )
    return [place.fp32_precision for place in places]


class Line(TrainModule):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails, self.seen = nn.Linear(2, 1), fails, []

    def training_step(self, batch):
        self.seen.append(settings())
        if self.fails:
            raise RuntimeError("boom")
        return self.layer(batch[0]).mean()

    def predict_step(self, batch):
        self.seen.append(settings())
        return self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**more) -> Trainer:
    return quiet(max_steps=1, run_dir=None, **more)


LOADER = DataLoader(TensorDataset(torch.ones(4, 2)), 2)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_precision_of_float32_products_is_set_while_it_runs(precision, fails):
    before, module = settings(), Line(fails)
    if fails:
        with pytest.raises(RuntimeError, match="boom"):
            trainer(fp32_precision=precision).fit(module, LOADER)
    else:
        trainer(fp32_precision=precision).fit(module, LOADER)
        trainer(fp32_precision=precision).predict(module, LOADER)
    assert {tuple(seen[:4]) for seen in module.seen} == {(precision,) * 4}
    assert settings() == before


def test_what_the_user_has_set_is_put_back():
    convolutions = torch.backends.cudnn.conv
    usual = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        before = settings()
        trainer(fp32_precision="tf32").fit(Line(), LOADER)
        assert settings() == before
        assert before[2] == "ieee"
    finally:
        convolutions.fp32_precision = usual


def test_none_leaves_it_as_it_is():
    before, module = settings(), Line()
    trainer().fit(module, LOADER)
    assert module.seen == [before]


def test_another_value_is_an_error_with_the_choices():
    with pytest.raises(
        PacelineError, match="fp32_precision: got 'high'; allowed: ieee, tf32, bf16, or None"
    ):
        trainer(fp32_precision="high")


STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {strategy: {"strategy": strategy} for strategy in STRATEGIES}
    return run_cases(JOB, tmp_path_factory.mktemp("channels"), cases, one_pair=True, function="both")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_channels_last_gives_the_same_numbers_in_another_format(found, strategy):
    plain, last = found[strategy][0]["plain"], found[strategy][0]["last"]
    assert plain["inputs"] == [False, False]
    assert last["inputs"] == [True, True]
    assert plain["weights"] is False
    if strategy == "ddp":  # sharded ones are contiguous
        assert last["weights"] is True
    assert last["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert last["read"] == pytest.approx(last["kept"], rel=1e-6)
