"""In 16-bit precisions micro-batches are summed, and ranks averaged, in float32 and rounded once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_cases, run_ranks
from torch import nn

from paceline import PacelineError
from paceline.strategies.gradients import accumulation
from paceline.strategies.gradients.accumulation import WideAccumulation
from paceline.strategies.torch_internals import has_grad_dtype

JOB = Path(__file__).with_name("precision_job.py")
ROUNDING = 2.0**-8  # half the distance of two neighbours, of 8 significant bits
ONCE = ("ddp", "fsdp", "hsdp", "deepspeed_stage_2", "deepspeed_stage_3")
# These round a rank's own sum, and then the average over ranks.
TWICE = ("deepspeed_stage_0", "deepspeed_stage_1")
EVERY = [(s, k) for s in (*ONCE, *TWICE) for k in (4, 1)]
USUAL = [*((s, 4) for s in ("ddp", "fsdp", "deepspeed_stage_2", "deepspeed_stage_3", "deepspeed_stage_0"))]
USUAL += [("ddp", 1), ("deepspeed_stage_3", 1)]
has_wide_gradients = pytest.mark.skipif(
    not has_grad_dtype(), reason="torch has gradients of another dtype since 2.10"
)
if not has_grad_dtype():  # these sum by it
    EVERY, USUAL = (
        [
            one
            for one in cases
            if one not in (("ddp", 4), ("deepspeed_stage_0", 4), ("deepspeed_stage_1", 4))
        ]
        for cases in (EVERY, USUAL)
    )


def strategies(names: tuple[str, ...], accumulate: int) -> list:
    """As parameters, those that a usual run leaves out marked."""
    return soaked(names, [s for s, k in USUAL if k == accumulate])


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    pairs = EVERY if request.config.getoption("--soak") else USUAL
    cases = {f"{s} {k}": {"strategy": s, "accumulate": k} for s, k in pairs}
    if has_grad_dtype():
        cases["unused"] = {"strategy": "ddp", "accumulate": 4, "unused": True}
    cases["narrow"] = {"strategy": "ddp", "accumulate": 4, "narrow": True}
    return run_cases(JOB, tmp_path_factory.mktemp("sums"), cases, one_pair=True, function="gradients")


@pytest.fixture(scope="module")
def exact():
    job = load_job(JOB)
    return {count: [job.exact_gradients(count, step) for step in (0, 1)] for count in (2, 8)}


def error(found: dict, exact: list[tuple[dict, dict]], of_sizes: bool = False) -> float:
    """The largest difference in two steps, as a part of the number, or of the size of what was summed."""
    worst = 0.0
    for gradients, (means, sizes) in zip(found["steps"], exact, strict=True):
        assert gradients.keys() >= means.keys()
        for name, mean in means.items():
            apart = (mean.flatten() - torch.tensor(gradients[name], dtype=torch.float64)).abs()
            scale = (sizes if of_sizes else means)[name].flatten().abs()
            counts = scale > 1e-4 * scale.max()  # in float32 a sum that nearly cancels is not exact either
            worst = max(worst, (apart / scale)[counts].max().item())
    return worst


@pytest.mark.parametrize("strategy", strategies(tuple(s for s, k in EVERY if s in ONCE and k == 4), 4))
@pytest.mark.parametrize("rank", [0, 1])
def test_micro_batches_and_ranks_are_summed_in_float32(found, exact, strategy, rank):
    assert error(found[f"{strategy} 4"][rank], exact[8]) <= ROUNDING


@pytest.mark.parametrize("strategy", strategies(ONCE, 1))
def test_ranks_are_averaged_in_float32(found, exact, strategy):
    assert error(found[f"{strategy} 1"][0], exact[2]) <= ROUNDING


@pytest.mark.parametrize(
    ("strategy", "accumulate"), soaked([(s, k) for s, k in EVERY if s in TWICE], USUAL)
)
def test_deepspeed_s_lower_stages_round_twice(found, exact, strategy, accumulate):
    assert error(found[f"{strategy} {accumulate}"][0], exact[2 * accumulate], of_sizes=True) <= 2 * ROUNDING


def test_four_ranks_are_averaged_in_float32(tmp_path):
    """In the first step, without DDP's reducer, and in the second, with it."""
    path = Path(__file__).with_name("reduction_job.py")
    run_ranks(path, 4, tmp_path, folder=tmp_path)
    job = load_job(path)
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {strategy: [[job.MEAN]] * 2 for strategy in ("ddp", "fsdp")}


def test_the_narrow_sum_can_be_chosen_and_is_worse(found, exact):
    assert error(found["narrow"][0], exact[8]) > 3 * ROUNDING


@has_wide_gradients
def test_ddp_names_unused_parameters_where_micro_batches_are_summed(found):
    assert "1 parameter gets no gradient in step 1" in found["unused"][0]["output"]
    assert "no gradient" not in found["ddp 4"][0]["output"]


@has_wide_gradients
def test_on_one_device_too(exact, tmp_path):
    found = load_job(JOB).gradients(tmp_path, "single", devices=1, accumulate=8)
    assert error(found, exact[8]) <= ROUNDING


def test_a_torch_that_cannot_is_refused(monkeypatch):
    monkeypatch.setattr(accumulation, "has_grad_dtype", lambda: False)
    wide = WideAccumulation(nn.Linear(2, 2), torch.float32)
    wide.begin()
    assert not wide.is_open
    with pytest.raises(PacelineError, match=r"since torch 2\.10(.|\n)*accumulate_dtype=torch\.bfloat16"):
        WideAccumulation(nn.Linear(2, 2).to(torch.bfloat16), torch.float32).begin()


@has_wide_gradients
def test_parameters_of_another_dtype_and_frozen_ones_are_left_alone():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(torch.bfloat16)
    module[1].float()
    module[0].bias.requires_grad_(False)
    sums = WideAccumulation(module, torch.float32)
    sums.begin()
    assert sums.is_open
    for _ in range(2):
        module[1](module[0](torch.ones(1, 2, dtype=torch.bfloat16)).float()).sum().backward()
    assert module[0].weight.grad.dtype == torch.float32
    sums.finish()
    assert not sums.is_open
    assert module[0].weight.grad.dtype == module[0].weight.grad_dtype == torch.bfloat16
    assert module[1].weight.grad.dtype == torch.float32
    assert module[0].bias.grad is None


@has_wide_gradients
def test_a_step_that_fails_between_micro_batches_leaves_plain_gradients(tmp_path):
    job = load_job(JOB)

    class Fails(job.Language):
        calls = 0

        def training_step(self, batch):
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("enough")
            return super().training_step(batch)

    module = Fails("adamw")

    def fit(batch_size):
        job.Trainer(
            accelerator="cpu",
            precision="bf16-true",
            max_steps=1,
            global_batch_size=4,
            progress=False,
            loggers=False,
            checkpoint=False,
            run_dir=None,
        ).fit(module, job.DataLoader(job.rows(), batch_size))

    with pytest.raises(RuntimeError, match="enough"):
        fit(2)
    assert {p.grad_dtype for p in module.parameters()} == {torch.bfloat16}
    fit(4)
    assert module.calls == 3


def test_float32_parameters_need_none():
    sums = WideAccumulation(nn.Linear(2, 2), torch.float32)
    sums.begin()
    assert not sums.is_open
