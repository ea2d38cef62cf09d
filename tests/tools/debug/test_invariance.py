"""check_invariance finds nothing where there is nothing, and names the first thing where there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline import DataModule, PacelineError, Trainer, tools

JOB = Path(__file__).with_name("invariance_job.py")
SAME = ["clean", "tokens", "few", "augmented", "streamed", "again"]
STRATEGIES = ["fsdp", *(f"deepspeed_stage_{stage}" for stage in range(4))]
BATCH_NORM = "step 1 the output of norm (BatchNorm1d) differs"
NOISE = "step 1 the output of noise ({}) differs"
DIFFERENT = {
    "batch-norm": BATCH_NORM,
    "contrastive": "step 1 the loss differs",
    "tokens-untold": "step 1 the loss differs",
    "draws": NOISE.format("Noisy"),
    "by-calls": NOISE.format("Counting"),
    "scaled": "step 1 the gradient of",
    "own-generator": "step 1 the batch differs",
}
MANUAL = "step 1 the gradient of first.weight differs"
ON_RANKS = DIFFERENT | {"by-rank": NOISE.format("Ranked"), "manual-scaled": MANUAL}
SHARDED = [f"{case}@{name}" for name in STRATEGIES for case in ("clean", "tokens", "batch-norm", "scaled")]
USUAL = [name for name in SHARDED if name.endswith("@fsdp")]
USUAL += ["clean@deepspeed_stage_2", "scaled@deepspeed_stage_2"]
USUAL += ["tokens@deepspeed_stage_3", "batch-norm@deepspeed_stage_3"]
job = load_job(JOB)


def by_choice(cases: list[str]) -> list:
    """As parameters of a test, those that a usual run leaves out marked."""
    return soaked(cases, [case for case in cases if case not in SHARDED or case in USUAL])


@pytest.fixture(scope="module")
def on_ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    sharded = SHARDED if request.config.getoption("--soak") else USUAL
    cases = [*SAME, "manual", *ON_RANKS, *sharded]
    done = run_ranks(JOB, 2, 2, folder, *cases, folder=folder)

    def of(case: str) -> list[dict]:
        return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(2)]

    of.output, of.folder, of.cases = done.stdout + done.stderr, folder, cases
    return of


@pytest.mark.parametrize("case", SAME)
@pytest.mark.parametrize("precision", ["32", "64", "bf16"])
def test_a_sound_model_is_found_the_same(case, precision, tmp_path):
    _, found, untouched = job.check(case, 1, tmp_path, precision=precision)
    assert found, str(found)
    assert untouched
    assert str(found) == "3 steps as it is, and in micro-batches of half the size: all tensors are the same"


@pytest.mark.parametrize("case", DIFFERENT)
def test_the_first_tensor_that_differs_is_named_on_one_device(case, tmp_path):
    _, found, untouched = job.check(case, 1, tmp_path, precision="64")
    assert not found
    assert DIFFERENT[case] in str(found)
    assert untouched
    assert list(tmp_path.iterdir()) == []  # nothing is written


@pytest.mark.launch  # for its length
@pytest.mark.parametrize(
    "case", by_choice([*SAME, *(f"{c}@{s}" for s in STRATEGIES for c in ("clean", "tokens"))])
)
def test_a_sound_model_is_found_the_same_on_ranks(on_ranks, case):
    for rank in on_ranks(case):
        assert rank["same"], rank["text"]
        assert rank["untouched"]
        assert (
            "on 2 ranks, and on one device in micro-batches of half the size: all tensors" in rank["text"]
        )


@pytest.mark.launch  # for its length
def test_manual_optimization_is_checked_on_ranks(on_ranks):
    for rank in on_ranks("manual"):
        assert rank["same"], rank["text"]
        assert "on 2 ranks, and on one device in whole batches: all tensors" in rank["text"]


@pytest.mark.launch  # for its length
@pytest.mark.parametrize(
    "case", by_choice([*ON_RANKS, *(f"{c}@{s}" for s in STRATEGIES for c in ("batch-norm", "scaled"))])
)
def test_the_first_tensor_that_differs_is_named_on_all_ranks(on_ranks, case):
    expected = ON_RANKS[case.partition("@")[0]]
    texts = [rank["text"] for rank in on_ranks(case)]
    assert expected in texts[0]
    assert texts[1] == texts[0]
    assert not any(rank["same"] for rank in on_ranks(case))


@pytest.mark.launch  # for its length
def test_the_report_is_said_once_and_nothing_is_written(on_ranks):
    assert on_ranks.output.count("check_invariance: 3 steps as it is") == len(on_ranks.cases)
    assert not (on_ranks.folder / "runs").exists()


def test_sync_batchnorm_is_taken_and_a_tolerance_too(tmp_path):
    _, found, _ = job.check("batch-norm", 1, tmp_path)
    assert "sync_batchnorm=True" in str(found)
    torch.manual_seed(1)
    trainer = Trainer(progress=False)
    loader = DataLoader(job.plain(), batch_size=4)
    assert tools.check_invariance(trainer, job.Normed(), loader, tolerance=100.0)
    assert not tools.check_invariance(trainer, job.Clean(), loader, steps=1, tolerance=1e-30)


def test_a_trainer_checks_and_then_trains(tmp_path):
    trainer = Trainer(progress=False, max_epochs=1, run_dir=tmp_path, strategy="single")
    module, loader = job.Clean(), DataLoader(job.plain(), batch_size=4)
    assert tools.check_invariance(trainer, module, loader)
    trainer.fit(module, loader)
    assert trainer.global_step == 8


def test_a_call_but_the_first_may_be_the_one_that_differs():
    class Second(job.Clean):
        def logits(self, x):
            torch.manual_seed(0)
            first = self.first(x)
            noise = torch.randn(len(x), 1, 1, generator=torch.Generator().manual_seed(len(x)))
            return super().logits(x * (1 + 0 * first.mean()) + noise)

    found = tools.check_invariance(Trainer(progress=False), Second(), DataLoader(job.plain(), batch_size=4))
    assert "step 1 the output of first (Linear), called a 2. time, differs" in str(found)


def test_manual_optimization_is_checked_on_ranks_only():
    class Manual(job.Clean):
        automatic_optimization = False

    with pytest.raises(PacelineError, match="under manual optimization"):
        tools.check_invariance(Trainer(progress=False), Manual(), DataLoader(job.plain(), batch_size=4))


def test_data_of_a_datamodule_is_set_up_first():
    class Data(DataModule):
        def setup(self, stage):
            self.dataset = job.plain()

        def train_dataloader(self):
            return DataLoader(self.dataset, batch_size=4)

    trainer = Trainer(progress=False, strategy="single")
    assert tools.check_invariance(trainer, job.Clean(), datamodule=Data())
    assert not tools.check_invariance(trainer, job.Normed(), Data())


class Batches(Dataset):
    """Makes the batches itself."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = job.plain()[: index + 2]
        return x, y


class StreamOfBatches(IterableDataset):
    def __iter__(self):
        yield from map(Batches().__getitem__, range(3))


@pytest.mark.parametrize(
    "data",
    [
        [(torch.ones(4, 5, 4), torch.ones(4).long())],
        DataLoader(job.plain(), batch_size=1),
        DataLoader(job.plain(), batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(Batches(), batch_size=None),
        DataLoader(StreamOfBatches(), batch_size=None),
    ],
)
def test_data_that_cannot_be_cut_is_reported(data):
    with pytest.raises(PacelineError, match="this data's cannot be cut"):
        tools.check_invariance(Trainer(progress=False), job.Clean(), data)
