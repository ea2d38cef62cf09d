"""Numbers that are not finite: no rank's weights ever see them, and the error says whose they are."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies.dtypes.precision import AutocastFP16
from paceline.trainer.faults.nonfinite import Guard

JOB = Path(__file__).with_name("nonfinite_job.py")
SECONDS = 120
KINDS = ("loss nan", "loss inf", "gradient nan", "gradient inf", "data")
STRATEGIES = ("ddp", "fsdp", *(f"deepspeed_stage_{stage}" for stage in range(4)))
BAD_SAMPLE = 28


def raising():
    """Cases whose run is to fail, each with the step at which it does."""
    found = []

    def add(strategy, kind, step=3, **more):
        name = " ".join([strategy, kind, *(f"{k}={v}" for k, v in more.items())])
        how = {"name": name, "strategy": strategy, "kind": kind, "steps": [step]} | more
        found.append(how)

    for strategy in STRATEGIES:
        all_of_them = strategy in ("ddp", "fsdp", "deepspeed_stage_3")
        for number, kind in enumerate(KINDS[:-1] if all_of_them else KINDS[1:3]):
            add(strategy, kind, rank=number % 2)
        add(strategy, "data", step=5)
        add(strategy, "gradient nan", accumulate=2, micro_batch=0)
        add(strategy, "gradient nan", accumulate=2, micro_batch=1, rank=0)
        add(strategy, "gradient inf", clip_grad_norm=1.0)
    for strategy in ("ddp", "fsdp", "deepspeed_stage_0", "deepspeed_stage_3"):
        add(strategy, "gradient nan", precision="bf16")
        add(strategy, "gradient nan", weighs=True, rank=0)
        add(strategy, "loss inf", weighs=True, accumulate=2, micro_batch=1)
    for strategy in ("ddp", "fsdp"):
        add(strategy, "gradient inf", clip_grad_value=0.5)
        add(strategy, "loss inf", accumulate=2, micro_batch=0)
        add(strategy, "gradient nan", manual=True)
        add(strategy, "loss nan", manual=True, rank=0)
    return found


RAISING = {case["name"]: case for case in raising()}
# Each strategy with each kind of number or the place where it is found, and each setting with one of them.
USUAL = [
    "ddp loss nan rank=0",
    "ddp gradient nan rank=0",
    "ddp data",
    "ddp gradient nan accumulate=2 micro_batch=1 rank=0",
    "ddp loss inf weighs=True accumulate=2 micro_batch=1",
    "ddp gradient inf clip_grad_value=0.5",
    "ddp gradient nan manual=True",
    "fsdp loss inf rank=1",
    "fsdp gradient inf rank=1",
    "fsdp data",
    "fsdp gradient inf clip_grad_norm=1.0",
    "fsdp gradient nan precision=bf16",
    "fsdp loss inf accumulate=2 micro_batch=0",
    "fsdp loss nan manual=True rank=0",
    "deepspeed_stage_0 gradient nan rank=1",
    "deepspeed_stage_0 data",
    "deepspeed_stage_1 data",
    "deepspeed_stage_2 data",
    "deepspeed_stage_3 loss inf rank=1",
    "deepspeed_stage_3 gradient nan accumulate=2 micro_batch=0",
    "deepspeed_stage_3 gradient nan weighs=True rank=0",
]
LONG = [name for name in RAISING if name not in USUAL]
NAMES = soaked(list(RAISING), USUAL)
SKIPPING = ("ddp", "fsdp", "deepspeed_stage_2")
SKIPPING_SOAK = ("fsdp",)


def skipping(strategies):
    for strategy in strategies:
        about = {"strategy": strategy, "steps": [2, 4]}
        yield about | {"name": f"{strategy} skip", "kind": "gradient inf", "nonfinite": "skip"}
        by_hand = {"kind": "none", "left_out": [2, 4], "max_steps": 3}
        yield about | {"name": f"{strategy} by hand"} | by_hand
    about = {"strategy": "ddp", "kind": "loss nan", "steps": [2, 3, 5], "nonfinite": "skip:2", "run": "cut"}
    yield about | {"name": "cut", "max_steps": 4}
    yield about | {"name": "cut, resumed", "resume": "latest"}
    yield {"name": "ignore", "strategy": "ddp", "kind": "gradient nan", "nonfinite": "ignore"}


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """By name of the case: what each rank has to say."""
    folder = tmp_path_factory.mktemp("nonfinite")
    soak = request.config.getoption("--soak")
    raising = [case for name, case in RAISING.items() if soak or name not in LONG]
    skips = skipping([name for name in SKIPPING if soak or name not in SKIPPING_SOAK])
    (folder / "cases").write_text(json.dumps([*raising, *skips]))
    options = {"folder": folder, "seconds": SECONDS, "deepspeed": True}  # which only the file says
    run_ranks(JOB, 2, folder, folder / "cases", **options)
    lines = [map(json.loads, (folder / f"found-{rank}.jsonl").read_text().splitlines()) for rank in "01"]
    return {first["name"]: (first, second) for first, second in zip(*lines, strict=True)}


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_raise_before_the_update(found, name):
    case, ranks = RAISING[name], found[name]
    (step,) = case["steps"]
    errors = {rank["error"] for rank in ranks}
    assert len(errors) == 1, errors
    (error,) = errors
    assert error is not None
    assert error.startswith("PacelineError")
    for rank in ranks:
        assert rank["step"] == step - 1
        assert len(rank["before"]) == step
        assert rank["before"][-2] != rank["before"][-1]
        changed = {n for n in rank["after"] if rank["after"][n] != rank["before"][-1][n]}
        # Under manual optimization the first optimizer has had a loss that was finite.
        assert not [n for n in changed if not (case.get("manual") and n.startswith("first"))]
        assert rank["failures"] == 1


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
@pytest.mark.parametrize("name", NAMES)
def test_step_rank_and_samples_are_named(found, name):
    case, ranks = RAISING[name], found[name]
    error, (step,), rank = ranks[0]["error"], case["steps"], case.get("rank", 1)
    if "gradient" in case["kind"] and case.get("manual"):  # it is averaged when it is seen
        for number, one in enumerate(ranks):
            samples = ", ".join(map(str, one["seen"]))
            assert re.search(rf"rank {number}, dataset ind(ex|ices) {samples}", error), error
        return
    assert f"step {step}, epoch 1" in error
    assert f"rank {rank}" in error
    samples = [BAD_SAMPLE] if case["kind"] == "data" else ranks[rank]["seen"]
    if "gradient" in case["kind"]:
        samples = ranks[rank]["seen"][:1]  # the gradient comes from the first one of its batch
    printed = re.search(r"dataset ind(?:ex|ices) ([\d, ]+)", error)
    assert printed is not None, error
    assert [int(part) for part in printed[1].split(",") if part.strip()] == samples
    what = {"loss nan": "nan", "loss inf": "inf", "data": "nan"}.get(case["kind"])
    assert f"the loss is {what}" in error if what else "a gradient is not finite" in error


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
def test_no_checkpoint_has_a_number_that_is_not_finite(found):
    for name, case in ((n, c) for n, c in RAISING.items() if n in found):
        checkpoints = sorted(Path(found[name][0]["run"]).glob("checkpoints/step-*"))
        assert checkpoints[-1].name == f"step-{case['steps'][0] - 1:08d}", name
        for path in (path for folder in checkpoints for path in folder.glob("*.safetensors")):
            assert all(bool(value.isfinite().all()) for value in load_file(path).values()), (name, path)


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
@pytest.mark.parametrize("strategy", soaked(SKIPPING, [n for n in SKIPPING if n not in SKIPPING_SOAK]))
def test_a_skipped_update_is_as_one_that_was_skipped_by_hand(found, strategy):
    skips, by_hand = found[f"{strategy} skip"], found[f"{strategy} by hand"]
    for mine, its in zip(skips, by_hand, strict=True):
        assert mine["error"] is its["error"] is None
        assert (mine["step"], its["step"]) == (5, 3)
        assert mine["skipped"] == 2
        assert mine["after"] == its["after"]
        assert mine["before"][1] == mine["before"][2] != mine["before"][3] == mine["before"][4]
        assert mine["rates"] == its["rates"] == [0.025]  # a schedule by step has not moved


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
def test_updates_skipped_are_counted_over_a_resume(found):
    for rank in found["cut"]:
        assert (rank["error"], rank["step"], rank["skipped"]) == (None, 4, 2)
    first, second = found["cut, resumed"]
    assert first["error"] == second["error"]
    assert "2 updates were skipped before, the most allowed" in first["error"]
    assert first["step"] == second["step"] == 4


@pytest.mark.launch  # for its length
@pytest.mark.fault(17)
def test_ignore_trains_on(found):
    for rank in found["ignore"]:
        assert (rank["error"], rank["step"], rank["skipped"]) == (None, 5, 0)
        assert rank["before"][3] != rank["before"][2]


# -- on one device -------------------------------------------------------------------------------


class Line(TrainModule):
    """Its loss is NaN, or its gradients alone, in the steps given."""

    def __init__(self, bad=(), what="loss", **optimizer):
        super().__init__()
        torch.manual_seed(0)
        self.line, self.bad, self.what, self.options = nn.Linear(2, 1), bad, what, optimizer

    def training_step(self, batch):
        loss = self.loss(batch)
        if self.global_step + 1 not in self.bad:
            return loss
        if self.what == "loss":
            return loss * math.nan
        if self.what == "infinite":
            return loss + (loss - loss.detach()).sqrt()
        return loss + (loss - loss.detach()).square().sqrt()

    def loss(self, batch):
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05, **self.options)


class Kept(Callback):
    def __init__(self):
        self.before = []

    def on_step_start(self, trainer):
        self.before.append([p.detach().clone() for p in trainer.module.parameters()])


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def fit(module, folder, samples=40, **settings):
    kept = Kept()
    trainer = Trainer(
        run_dir=folder, accelerator="cpu", progress=False, loggers=False, callbacks=[kept, Checkpoint(1)],
        **settings,
    )  # fmt: skip
    data = torch.randn(samples, 2, generator=torch.Generator().manual_seed(1))
    try:
        trainer.fit(module, DataLoader(data, 2))
    except PacelineError as error:
        return trainer, kept.before, str(error)
    return trainer, kept.before, None


@pytest.mark.fault(17)
@pytest.mark.parametrize(("setting", "most"), [("skip", 10), ("skip:2", 2)])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_so_many_updates_may_be_skipped_and_no_more(tmp_path, setting, most, what):
    trainer, before, error = fit(Line(range(2, 40), what), tmp_path, nonfinite=setting)
    assert f"{most} updates were skipped before, the most allowed" in error
    assert f"step {most + 2}," in error
    assert (trainer.global_step, trainer.counters.skipped_steps) == (most + 1, most)
    assert not same(before[0], before[1])
    assert all(same(before[1], later) for later in [*before[2:], list(trainer.module.parameters())])


@pytest.fixture
def late(monkeypatch):
    """Flags are read a step late, as on an accelerator with a fused optimizer."""
    made = Guard.__init__

    def init(self, *given, **more):
        made(self, *given, **more)
        self.late = True

    monkeypatch.setattr(Guard, "__init__", init)


@pytest.mark.fault(17)
@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("step", [1, 4, 10])
def test_a_fused_optimizer_leaves_the_weights_and_the_step_is_named_later(tmp_path, late, what, step):
    module = Line([step], what, fused=True)
    trainer, before, error = fit(module, tmp_path, samples=20)
    assert f"step {step}," in error
    assert "optimizer steps were skipped from this step on" in error
    assert trainer.global_step == step
    assert same(before[step - 1], list(module.parameters()))
    assert step == 1 or not same(before[0], before[-1])


@pytest.mark.fault(17)
def test_a_fused_optimizer_trains_on_where_all_is_finite(tmp_path, late):
    _, before, error = fit(Line(fused=True), tmp_path)
    assert error is None
    assert not any(same(a, b) for a, b in pairwise(before))


@pytest.mark.fault(17)
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_of_scaled_gradients_is_the_scaler_s(tmp_path, fused):
    """Scaled losses overflow at first, and nobody is to blame: the scale comes down."""
    trainer, before, error = fit(Line(fused=fused), tmp_path, precision=AutocastFP16(init_scale=2.0**24))
    assert error is None
    assert trainer.counters.skipped_steps == sum(same(a, b) for a, b in pairwise(before)) > 0
    assert same(before[0], before[1])
    assert not same(before[0], before[-1])


@pytest.mark.fault(17)
@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_that_is_not_finite_is_reported_under_fp16_too(tmp_path, fused):
    module = Line([4], fused=fused)
    trainer, before, error = fit(module, tmp_path, precision="fp16")
    assert "the loss is nan" in error
    assert trainer.global_step == 3
    assert same(before[3], list(module.parameters()))


class Sparse(Line):
    def __init__(self, bad=(), what="gradient"):
        super().__init__(bad, what)
        self.table = nn.Embedding(8, 2, sparse=True)
        self.line.requires_grad_(False)

    def loss(self, batch):
        rows = self.table((batch[:, 0] > 0).long())
        return (self.line.weight * rows).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([self.table.weight], lr=0.05)


class Complex(Line):
    def __init__(self, bad=(), what="gradient"):
        super().__init__(bad, what)
        self.turn = nn.Parameter(torch.randn(2, dtype=torch.complex64))

    def loss(self, batch):
        return (batch * self.turn).abs().square().mean() + super().loss(batch)


@pytest.mark.fault(17)
@pytest.mark.parametrize("what", ["gradient", "infinite"])
@pytest.mark.parametrize("kind", [Sparse, Complex])
def test_sparse_and_complex_gradients_are_looked_at(tmp_path, kind, what):
    trainer, before, error = fit(kind(), tmp_path / "whole")
    assert error is None
    assert trainer.global_step == 20
    assert not same(before[0], before[-1])
    module = kind([4], what)
    trainer, before, error = fit(module, tmp_path / "bad")
    assert "a gradient is not finite" in error
    assert "step 4," in error
    assert same(before[3], list(module.parameters()))
