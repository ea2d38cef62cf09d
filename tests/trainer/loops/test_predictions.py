"""predict(out=...): written in shards as it goes, read back exactly, in the data's order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Predictions, Trainer, TrainModule
from paceline.trainer.loops import predictions as writing


class Model(TrainModule):
    """Gives back what it is asked to make of the samples' numbers."""

    def __init__(self, make=lambda ids: ids):
        super().__init__()
        self.make = make

    def predict_step(self, batch):
        return self.make(batch[0])


def loader(samples: int = 10, batch_size: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch_size)


def predict(make=lambda ids: ids, data=None, **options):
    trainer = Trainer(progress=False, loggers=False, checkpoint=False)
    return trainer.predict(Model(make), loader() if data is None else data, **options)


def test_what_is_read_back_is_what_was_returned():
    def make(ids):
        whole = torch.stack([ids, -ids], 1)
        return {
            "float": ids / 3,
            "half": (ids / 3).bfloat16(),
            "views": [whole[:, 0], whole[:, 1], whole.t()],
            "empty": torch.empty(0, 3),
            "scalar": ids.sum(),
            "text": [f"sample {i}" for i in ids.tolist()],
            "nested": ({"a": ids > 3, 7: None}, 0.1, b"raw"),
        }

    expected = predict(make)
    found = predict(make, out="predicted")
    assert isinstance(found, Predictions)
    assert (len(found), found.samples) == (3, 10)
    for _ in range(2):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.keys() == theirs.keys()
            for name in ("float", "half", "empty", "scalar"):
                assert torch.equal(ours[name], theirs[name])
                assert ours[name].dtype == theirs[name].dtype
            assert all(map(torch.equal, ours["views"], theirs["views"]))
            assert ours["text"] == theirs["text"]
            assert type(ours["nested"]) is tuple
            assert torch.equal(ours["nested"][0]["a"], theirs["nested"][0]["a"])
            assert ours["nested"][0][7] is None
            assert ours["nested"][1:] == theirs["nested"][1:]
    again = Predictions("predicted")
    assert [o["text"] for o in again] == [o["text"] for o in expected]
    assert repr(again) == "Predictions('predicted')"


def test_memory_holds_one_part_whatever_the_number_of_batches(monkeypatch):
    monkeypatch.setattr(writing, "_PART_BYTES", 1000)
    most = 0
    real = writing.PredictionWriter.take

    def take(self, output, size):
        nonlocal most
        real(self, output, size)
        most = max(most, sum(t.nbytes for t in self._tensors.values()))

    monkeypatch.setattr(writing.PredictionWriter, "take", take)
    found = predict(data=loader(2000, 8), out=Path("predicted"))
    assert most < 1000
    parts = sorted(p.name for p in Path("predicted").glob("part-*"))
    assert len(parts) >= 2000 * 8 / 1000 / 2
    assert torch.cat(list(found)).tolist() == list(range(2000))


def test_text_and_small_tensors_of_any_amount_are_read_back():
    text = "\0" * 17_000_000  # more, escaped, than a file's header may hold
    (found,) = predict(lambda ids: text, data=loader(4), out="text")
    assert found == text
    small = predict(
        lambda ids: [torch.tensor(float(i)) for i in range(50_000)], data=loader(4), out="small"
    )
    assert torch.stack(next(iter(small))).tolist() == list(range(50_000))


def test_several_dataloaders_are_one_after_the_other():
    found = predict(data=[loader(5), loader(3)], out="predicted")
    assert torch.cat(list(found)).tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_nothing_is_written_over_and_that_is_reported_before_anything_is_computed():
    Path("predicted").mkdir()
    (Path("predicted") / "mine").write_text("mine")

    def make(ids):
        raise AssertionError("computed")

    with pytest.raises(PacelineError, match="never overwritten"):
        predict(make, out="predicted")
    assert [p.name for p in Path("predicted").iterdir()] == ["mine"]


def test_a_prediction_that_fails_leaves_nothing():
    def make(ids):
        if 4 in ids:
            raise KeyError("in the middle")
        return ids

    with pytest.raises(KeyError):
        predict(make, out="predicted")
    assert list(Path().iterdir()) == []


def test_a_prediction_that_is_stopped_leaves_nothing_that_looks_whole():
    def make(ids):
        signal.raise_signal(signal.SIGINT)
        return ids

    with pytest.raises(KeyboardInterrupt):
        predict(make, out="predicted")
    assert list(Path().iterdir()) == []


def test_a_folder_is_found_wherever_the_process_goes(monkeypatch, tmp_path):
    def make(ids):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        os.chdir(tmp_path / "elsewhere")
        return ids

    monkeypatch.setenv("HOME", str(tmp_path))
    found = predict(make, out="predicted")
    assert torch.cat(list(found)).tolist() == list(range(10))
    assert len(list(predict(make, out="~/mine/predicted"))) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "mine", "predicted"]
    assert (tmp_path / "mine" / "predicted" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (torch.ones(2).to(torch.complex128), "complex128"),
        (torch.eye(2).to_sparse(), "sparse"),
        (np.longdouble(1), "longdouble"),
    ],
)
def test_tensors_and_numbers_that_files_do_not_take_are_named(odd, kind):
    with pytest.raises(PacelineError, match=kind):
        predict(lambda ids: {"odd": odd}, out="predicted")
    assert not Path("predicted").exists()


def test_what_cannot_be_written_is_named():
    with pytest.raises(PacelineError, match="tensors and plain data") as error:
        predict(lambda ids: {"model": object()}, out="predicted")
    assert "object" in str(error.value)
    assert "the output of batch 0.model" in str(error.value)
    assert predict(lambda ids: {"model": object()})  # in memory anything goes


def test_a_folder_without_predictions_and_a_damaged_one_are_reported():
    with pytest.raises(PacelineError, match="there are no predictions in this folder"):
        Predictions("nowhere")
    predict(out="predicted")
    part = next(Path("predicted").glob("part-*"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with pytest.raises(PacelineError, match="a file of predictions is damaged"):
        list(Predictions("predicted"))


def test_a_checkpoint_is_no_predictions():
    class Trained(Model):
        def training_step(self, batch):
            return self.line(batch[0][:, None].float()).mean()

        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run = Trainer(max_steps=1, progress=False).fit(Trained(), loader())
    with pytest.raises(PacelineError, match="something else than predictions"):
        Predictions(run.latest)


def test_no_batch_at_all_is_reported_as_ever():
    with pytest.raises(PacelineError, match="has no batch"):
        predict(data=loader(0), out="predicted")
    assert not Path("predicted").exists()
