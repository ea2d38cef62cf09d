"""find_batch_size doubles, then halves the interval, and ends at the largest batch that fits."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

from paceline import DataModule, PacelineError, tools
from paceline.strategies import Single
from paceline.tools.tuning.batch_size_search import BatchSizeSearch, BatchSizeTrial

JOB = Path(__file__).with_name("tuning_job.py")
job = load_job(JOB)
Planted, Quadratic, loader, quiet = job.Planted, job.Quadratic, job.loader, job.quiet


def tried(search):
    return [(trial.batch_size, trial.fits) for trial in search.tried]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(
    ("start", "most", "expected"),
    [
        (3, 10, [(3, True), (6, True), (12, False), (9, True), (10, True), (11, False)]),
        (9, 3, [(9, False), (4, False), (2, True), (3, True)]),
        (3, 0, [(3, False), (1, False)]),
    ],
)
def test_the_largest_batch_that_fits_is_found(where, start, most, expected):
    search = tools.find_batch_size(quiet(), Planted(most, where), loader(start))
    assert tried(search) == expected
    assert search.suggestion == (most or None)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("MPS backend out of memory (MPS allocated: 4 GB)"),
    ],
)
def test_each_way_to_run_out_of_memory_is_known(error):
    assert tools.find_batch_size(quiet(), Planted(5, error=error), loader(5)).suggestion == 5


def test_another_error_is_not_taken_for_it():
    with pytest.raises(RuntimeError, match="shapes"):
        tools.find_batch_size(quiet(), Planted(5, error=RuntimeError("shapes do not match")), loader(4))


def test_a_module_that_does_not_fit_by_itself_fits_no_batch():
    class Large(Planted):
        def configure_optimizers(self):
            self.fail()

    assert tried(tools.find_batch_size(quiet(), Large(9), loader(1))) == [(1, False)]


def test_what_bounds_it():
    assert tools.find_batch_size(quiet(), Quadratic(), loader(4), most=7).suggestion == 7
    assert tools.find_batch_size(quiet(), Quadratic(), loader(100)).suggestion == 24  # the dataset
    some = DataLoader(TensorDataset(job.X), 5, sampler=SubsetRandomSampler(range(9)), drop_last=True)
    assert tried(tools.find_batch_size(quiet(), Quadratic(), some)) == [(5, True), (9, True)]
    assert tools.find_batch_size(quiet(global_batch_size=9), Quadratic(), loader(5)).suggestion == 9
    stream = DataLoader(job.Stream(length=7), batch_size=4, drop_last=True)
    search = tools.find_batch_size(quiet(), Quadratic(), stream)
    assert tried(search) == [(4, True), (6, True), (7, True)]


def test_the_headroom_is_taken_off():
    search = tools.find_batch_size(quiet(), Planted(11), loader(11), headroom=0.2)
    assert search.suggestion == 8
    assert str(search) == "batch size 8 for Planted: 11 fits, and 12 does not"
    assert tools.find_batch_size(quiet(), Planted(1), loader(2), headroom=0.9).suggestion == 1
    none = tools.find_batch_size(quiet(), Planted(0), loader(1), headroom=0.2)
    assert str(none) == "no batch size is suggested for Planted: not even 1 sample fits"
    all_of_it = tools.find_batch_size(quiet(), Quadratic(), loader(24))
    assert str(all_of_it) == "batch size 24 for Quadratic: 24 fits, and nothing larger was tried"


SIZES: list = []


class Seen(Quadratic):
    def training_step(self, batch):
        SIZES.append((self.trainer.global_step, len(batch[0])))
        return super().training_step(batch)


@pytest.mark.parametrize(
    ("settings", "micro_batches"), [({}, 1), ({"accumulate": 4}, 2), ({"global_batch_size": 16}, 2)]
)
def test_a_trial_takes_its_steps_as_the_run_would(settings, micro_batches):
    SIZES.clear()
    tools.find_batch_size(quiet(**settings), Seen(), loader(3), most=3, steps=4)
    assert [(step, 3) for step in range(4) for _ in range(micro_batches)] == SIZES


def test_the_strategy_is_the_trainers_on_one_device():
    class Looks(Quadratic):
        def on_fit_start(self):
            assert self.trainer.strategy.marked

    strategy = Single()
    strategy.marked = True
    assert tools.find_batch_size(quiet(strategy=strategy), Looks(), loader(12), most=12).suggestion == 12


def test_speed_is_measured_and_memory_where_the_device_tells():
    search = tools.find_batch_size(quiet(), Planted(5), loader(5), steps=1)
    assert all((trial.samples_per_second is not None) == trial.fits for trial in search.tried)
    assert all(trial.samples_per_second > 0 for trial in search.tried if trial.fits)
    assert {trial.peak_bytes for trial in search.tried} == {None}


def test_nothing_of_the_caller_changes(tmp_path):
    class Data(DataModule):
        def setup(self, stage):
            self.dataset = TensorDataset(job.X)

        def train_dataloader(self):
            return DataLoader(self.dataset, 4, sampler=RandomSampler(self.dataset, generator=order))

    trainer = quiet(run_dir=tmp_path / "runs")
    module, data, order = Planted(4), Data(), torch.Generator().manual_seed(3)
    before = module.state_dict()["w"].clone(), [*vars(module)], job.generators(), order.get_state()
    assert tools.find_batch_size(trainer, module, datamodule=data).suggestion == 4
    after = module.state_dict()["w"], [*vars(module)], job.generators(), order.get_state()
    assert torch.equal(before[0], after[0])
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])
    assert not hasattr(data, "dataset")
    assert trainer.global_step == 0
    assert not (tmp_path / "runs").exists()


def test_a_stream_is_left_where_it_was():
    stream = job.Stream()
    tools.find_batch_size(quiet(), Quadratic(), DataLoader(stream, 4), most=8)
    assert stream.given == 0


def test_a_trial_holds_no_memory_of_the_one_before():
    alive, before = weakref.WeakSet(), []

    class Counted(Planted):
        def on_setup(self):
            before.append(len(alive))
            alive.add(self)

    tools.find_batch_size(quiet(), Counted(5, "backward"), loader(4))
    assert before == [0, 0, 0, 0]


def test_a_trial_that_runs_out_of_memory_is_no_failure_to_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_JOB", str(tmp_path))
    assert tools.find_batch_size(quiet(), Planted(0), loader(1)).suggestion is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(torch.OutOfMemoryError):
        quiet().fit(Planted(0), loader(1))
    assert [path.name for path in tmp_path.iterdir()] == ["failed-0"]


def test_a_module_with_its_own_loader_is_searched_too():
    class Owner(Planted):
        def train_dataloader(self):
            return loader(4)

    assert tools.find_batch_size(quiet(), Owner(5)).suggestion == 5


def test_wrong_arguments_are_reported_at_once():
    with pytest.raises(PacelineError) as caught:
        tools.find_batch_size(quiet(), Quadratic(), loader(), start=0, most="9", steps=0, headroom=1.0)
    text = str(caught.value)
    assert "find_batch_size: 4 invalid arguments" in text
    for part in ("start: got 0", "most: got '9'", "steps: got 0", "headroom: got 1.0"):
        assert part in text
    with pytest.raises(PacelineError, match="start=8, most=4"):
        tools.find_batch_size(quiet(), Quadratic(), loader(), start=8, most=4)


@pytest.mark.parametrize(
    "data",
    [
        [(job.X,)],
        DataLoader(TensorDataset(job.X), batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(TensorDataset(job.X), batch_size=None),
        {"one": loader(), "other": loader()},
    ],
)
def test_data_whose_batch_size_cannot_be_changed_is_refused(data):
    with pytest.raises(PacelineError, match="this data's cannot be changed"):
        tools.find_batch_size(quiet(), Quadratic(), data)


def test_the_search_is_drawn(tmp_path):
    trials = (
        BatchSizeTrial(8, True, 10**9, 100.0),
        BatchSizeTrial(16, True, 2 * 10**9, 180.0),
        BatchSizeTrial(32, False, 3 * 10**9, None),
    )
    BatchSizeSearch("Net", trials, 16).plot(tmp_path / "new" / "sizes.png")
    assert (tmp_path / "new" / "sizes.png").read_bytes().startswith(b"\x89PNG")
    tools.find_batch_size(quiet(), Planted(0), loader(1)).plot(tmp_path / "none.png")
    assert (tmp_path / "none.png").exists()


def test_ranks_agree_on_each_trial(tmp_path):
    """Rank 1 runs out of memory above 9 samples, rank 0 above 14."""
    run_ranks(JOB, 2, tmp_path, "batch", folder=tmp_path)
    for rank in range(2):
        about = json.loads((tmp_path / f"batch-{rank}.json").read_text())
        fits = [(3, True), (6, True), (12, False), (9, True), (10, False)]
        assert about == {"fits": [list(one) for one in fits], "suggestion": 9}
    assert not (tmp_path / "runs").exists()
