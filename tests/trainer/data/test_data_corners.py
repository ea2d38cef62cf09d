"""Data as users have it: odd batches, other workers, look-alikes of other libraries' streams."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from paceline import PacelineError, Predictions, Trainer, TrainModule, tools

JOB = Path(__file__).with_name("data_corners_job.py")


class Model(TrainModule):
    def __init__(self, output=None):
        super().__init__()
        self.line = nn.Linear(1, 1, dtype=torch.float64)
        self.output = output
        self.seen: list[list[int]] = []

    def training_step(self, batch):
        self.seen.append(batch.tolist())
        return self.line(batch.double()[:, None] / 100).square().mean()

    def predict_step(self, batch):
        return self.output(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stream(IterableDataset):
    def __init__(self, size: int = 32) -> None:
        self.size = size

    def __iter__(self):
        yield from map(torch.tensor, range(self.size))


class Batches(Stream):
    def __iter__(self):
        yield from torch.arange(self.size).split(4)


class Shards(IterableDataset):
    """As ``datasets.IterableDataset``: shards for workers, a shuffle buffer that goes by the epoch."""

    _epoch = 0

    def set_epoch(self, epoch):
        self._epoch = epoch

    def __iter__(self):
        shards = [list(range(i, 32, 3)) for i in range(3)]
        info = get_worker_info()
        if info is not None:
            if info.id >= len(shards):
                return
            shards = shards[info.id :: info.num_workers]
        draw, buffer = np.random.default_rng(self._epoch), []
        for i in (i for shard in shards for i in shard):
            buffer.append(i)
            if len(buffer) == 5:
                yield torch.tensor(1000 * self._epoch + buffer.pop(draw.integers(5)))
        yield from (torch.tensor(1000 * self._epoch + i) for i in buffer)


def trained(data, folder, **settings) -> list[list[int]]:
    module = Model()
    Trainer(
        **(
            {"max_epochs": 1, "precision": "64", "progress": False, "loggers": False, "run_dir": folder}
            | settings
        )
    ).fit(module, data)
    return module.seen


def flat(batches) -> list[int]:
    return [i for batch in batches for i in batch]


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_a_stream_of_shards_gives_each_sample_once_in_each_epoch(tmp_path, workers):
    loader = DataLoader(Shards(), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    found = flat(trained(loader, tmp_path, max_epochs=2))
    assert sorted(found) == [*range(32), *range(1000, 1032)]


@pytest.mark.launch  # for its length
@pytest.mark.ranks
def test_persistent_spawned_workers_give_each_sample_once(tmp_path):
    options = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}
    found = trained(DataLoader(Stream(), batch_size=4, **options), tmp_path, max_epochs=2)
    assert found == 2 * torch.arange(32).view(8, 4).tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_datapipe_gives_one_order_on_any_number_of_workers(tmp_path, shuffle):
    def pipe():
        found = IterableWrapper([torch.tensor(i) for i in range(32)])
        return (found.shuffle() if shuffle else found).sharding_filter()

    def of(workers):
        loader = DataLoader(pipe(), batch_size=4, num_workers=workers, shuffle=shuffle or None)
        return trained(loader, tmp_path, max_epochs=2)

    alone = of(0)
    assert sorted(flat(alone)) == sorted(2 * list(range(32)))
    assert (flat(alone) == 2 * list(range(32))) is not shuffle
    assert of(2) == alone


def test_batches_the_dataset_makes_come_once_each(tmp_path):
    found = trained(DataLoader(Batches(), batch_size=None, num_workers=2), tmp_path, accumulate=3)
    assert found == torch.arange(32).view(8, 4).tolist()


def test_streams_in_a_row_come_once_each(tmp_path):
    joined = Stream(16) + Stream(8)
    found = trained(DataLoader(joined, batch_size=4, num_workers=2), tmp_path)
    assert flat(found) == [*range(16), *range(8)]


def test_a_limit_breaks_off_persistent_workers_without_a_trace(tmp_path):
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}
    loader = DataLoader(Stream(), batch_size=4, **options)
    found = trained(loader, tmp_path, max_epochs=3, limit_train_batches=3)
    assert found == 3 * torch.arange(12).view(3, 4).tolist()


def test_overfitting_reads_the_same_batches_of_persistent_workers(tmp_path):
    loader = DataLoader(Shards(), batch_size=4, num_workers=2, persistent_workers=True)
    found = trained(loader, tmp_path, max_epochs=3, overfit_batches=2)
    assert found[:2] == found[2:4] == found[4:]


def test_drop_last_drops_what_makes_no_whole_step(tmp_path):
    loader = DataLoader(Stream(30), batch_size=4, num_workers=2, drop_last=True)
    assert flat(trained(loader, tmp_path)) == list(range(28))
    assert flat(trained(loader, tmp_path, global_batch_size=8)) == list(range(24))


def test_a_global_batch_that_is_no_multiple_over_three_workers(tmp_path):
    loader = DataLoader(Stream(30), batch_size=4, num_workers=3, persistent_workers=True)
    found = trained(loader, tmp_path, max_epochs=2, global_batch_size=10)
    assert flat(found) == 2 * list(range(30))
    assert [len(batch) for batch in found] == 6 * [4, 4, 2]


Point = namedtuple("Point", "a b")


def same(found, wanted) -> bool:
    """Equal, and of the same types all through."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, (torch.Tensor, np.ndarray)):
        equal = torch.equal if isinstance(wanted, torch.Tensor) else np.array_equal
        return found.dtype == wanted.dtype and equal(found, wanted)
    if isinstance(wanted, dict):
        return same(list(found.items()), list(wanted.items()))
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == wanted


OUTPUTS = {
    "none": None,
    "empty list": [],
    "no rows": torch.empty(0, 3),
    "no dimension": torch.tensor(3),
    "bfloat16": torch.ones(2).bfloat16(),
    "repeated": torch.ones(1).expand(5),
    "views of one": (lambda t: [t, t, t[1:]])(torch.arange(4)),
    "dots in names": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    "odd keys": {1: torch.ones(1), (2, 3): "x"},
    "array by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "our own marks": {"__kind__": "tensor"},
    "not a number": [float("inf"), 10**400, "\ud800", b"\0"],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_predictions_in_files_are_read_as_they_were(tmp_path, name):
    out = tmp_path / "not" / "there" / "yet"
    wanted = OUTPUTS[name]
    trainer = Trainer(progress=False, run_dir=tmp_path)
    (found,) = trainer.predict(Model(lambda batch: wanted), [torch.ones(2)], out=out)
    assert same(found, wanted)


def test_a_named_tuple_is_read_as_a_tuple(tmp_path):
    trainer = Trainer(progress=False, run_dir=tmp_path)
    trainer.predict(Model(lambda batch: Point(batch, 3)), [torch.ones(2)], out=tmp_path / "out")
    (found,) = Predictions(tmp_path / "out")
    assert same(found, (torch.ones(2), 3))


def test_a_prediction_that_fails_leaves_no_folder(tmp_path):
    def output(batch):
        if batch.item() == 2:
            raise ValueError("not this one")

    trainer = Trainer(progress=False, run_dir=tmp_path / "runs")
    with pytest.raises(ValueError, match="not this one"):
        trainer.predict(Model(output), [torch.tensor([i]) for i in range(4)], out=tmp_path / "out")
    assert not any("out" in path.name for path in tmp_path.iterdir())


class Tied(Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.frozen = (nn.Linear(3, 3).double() for _ in range(3))
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def training_step(self, batch):
        return self.frozen(self.second(self.first(batch[0]).relu())).square().mean()


def test_tied_and_frozen_weights_are_invariant():
    loader = DataLoader(TensorDataset(torch.randn(24, 3).double()), batch_size=8, shuffle=True)
    found = tools.check_invariance(Trainer(precision="64", progress=False), Tied(), loader)
    assert found, str(found)


def test_check_invariance_says_what_cannot_be_cut():
    batches = [[torch.randn(8, 3).double()]]
    with pytest.raises(PacelineError, match="cannot be cut"):
        tools.check_invariance(Trainer(precision="64", progress=False), Tied(), batches)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corners")
    cases = ["one-validation-batch", "mixed-validation", "own-strings", "fewer-than-ranks"]
    run_ranks(JOB, 2, 2, folder, *cases, folder=folder)
    return lambda case: [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(2)]


def test_a_metric_object_of_a_rank_without_a_validation_sample(on_two_ranks):
    for found in on_two_ranks("one-validation-batch"):
        assert found["metrics"]["val/mean"] == found["metrics"]["val/plain"] == 1.5


def test_validation_over_a_stream_a_map_and_a_list(on_two_ranks):
    for found in on_two_ranks("mixed-validation"):
        for name, wanted in (("stream", 4.5), ("map", 4.0), ("list", 1.0)):
            assert found["metrics"][f"val/{name}/mean"] == pytest.approx(wanted)
            assert found["metrics"][f"val/{name}/plain"] == pytest.approx(wanted)


@pytest.mark.fault(22)
def test_parts_of_each_rank_that_hold_strings_alone(on_two_ranks):
    first, second = on_two_ranks("own-strings")
    assert first["seen"] == list(range(18))
    assert second["seen"] == list(range(100, 109))


@pytest.mark.fault(22)
def test_one_batch_for_two_ranks(on_two_ranks):
    first, second = on_two_ranks("fewer-than-ranks")
    assert (first["seen"], second["seen"]) == ([0, 1, 2], [])
    assert first["samples"] == second["samples"] == 3
