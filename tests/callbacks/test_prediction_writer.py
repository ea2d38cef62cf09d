"""PredictionWriter: a row for each sample in the dataset's order, on one device and on three ranks."""

import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import PredictionWriter

JOB = Path(__file__).with_name("prediction_writer_job.py")


class Model(TrainModule):
    """Predicts ``output(x)`` of the batch's numbers x, shape (n,)."""

    def __init__(self, output):
        super().__init__()
        self.output, self.net = output, torch.nn.Linear(1, 1)

    def predict_step(self, batch):
        return self.output(batch[0])


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.tensor(float(n)),) for n in range(10))


class Named(torch.utils.data.Dataset):
    """A dataset whose keys are words."""

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return (torch.tensor(float(ord(key))),)


def loader(samples=10, **options):
    return DataLoader(TensorDataset(torch.arange(float(samples))), batch_size=4, **options)


def predict(writer, output=lambda x: 2 * x, data=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "devices": 1}
    trainer = Trainer(callbacks=writer, **(usual | settings))
    trainer.predict(Model(output), loader() if data is None else data, keep=False)


def lines(path="out.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def files():
    return sorted(path.name for path in Path().iterdir() if path.is_file())


# -- rows ----------------------------------------------------------------------------------------


def test_a_line_for_each_sample():
    predict(PredictionWriter("deep/out.jsonl"))
    assert lines("deep/out.jsonl") == [{"index": n, "prediction": 2.0 * n} for n in range(10)]
    assert [path.name for path in Path("deep").iterdir()] == ["out.jsonl"]


def test_a_dict_of_tensors_and_lists_is_columns():
    def output(x):
        return {
            "class": x.long(),
            "pair": torch.stack([x, -x], 1).bfloat16(),
            "name": [f"n{i:g}" for i in x],
        }

    predict(PredictionWriter("out.jsonl"), output)
    predict(PredictionWriter("out.csv"), output)
    assert lines()[3] == {"index": 3, "class": 3, "pair": [3.0, -3.0], "name": "n3"}
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert len(rows) == 10
    assert rows[3] == {"index": "3", "class": "3", "pair": "[3.0, -3.0]", "name": "n3"}


def test_fields_make_rows_of_anything_else():
    def fields(output, batch):
        return [
            {"sum": a + b, "as": np.float64(a), "x": x} for a, b, x in zip(*output, batch[0], strict=True)
        ]

    predict(PredictionWriter("out.jsonl", fields), lambda x: (x.tolist(), [1.0] * len(x)))
    assert lines()[3] == {"index": 3, "sum": 4.0, "as": 3.0, "x": 3.0}


def test_the_order_is_the_dataset_s():
    predict(PredictionWriter("out.jsonl"), data=loader(shuffle=True))
    assert lines() == [{"index": n, "prediction": 2.0 * n} for n in range(10)]


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (DataLoader(Stream(), 4), range(10)),
        (DataLoader(Named(), 2, sampler=["c", "a", "b"]), [ord("c"), ord("a"), ord("b")]),
    ],
)
def test_where_samples_have_no_number_rows_are_numbered(data, values):
    predict(PredictionWriter("out.jsonl"), data=data)
    assert lines() == [{"index": n, "prediction": 2.0 * value} for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("output", "got"),
    [
        (torch.sum, "Tensor: tensor(6.)"),
        (lambda x: (x, x), "tuple: "),
        (lambda x: {"a": x, "b": x[1:]}, "entries by column: {'a': 4, 'b': 3}"),
        (lambda x: x[:3], "3 rows for a batch of 4 samples"),
        (lambda x: {"a": {"b": x}}, "dict: "),
    ],
)
def test_an_output_that_is_no_rows_is_an_error(output, got):
    with pytest.raises(PacelineError, match="not a row for each sample of the batch") as caught:
        predict(PredictionWriter("out.jsonl"), output)
    assert got in str(caught.value)
    assert files() == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (lambda output, batch: [{"index": 1}] * 4, "a field is named 'index'"),
        (lambda output, batch: [{"a": {1, 2}}] * 4, "a field is no plain data"),
        (lambda output, batch: [1] * 4, "not a row for each sample"),
    ],
)
def test_fields_that_are_no_rows_are_an_error(fields, expected):
    with pytest.raises(PacelineError, match=expected):
        predict(PredictionWriter("out.jsonl", fields))


def test_a_csv_has_one_set_of_columns():
    def fields(output, batch):
        return [{"a": 1.0} if x < 5 else {"b": 1.0} for x in batch[0]]

    with pytest.raises(PacelineError, match=r"columns \['index', 'b'\] of sample 5"):
        predict(PredictionWriter("out.csv", fields))
    assert files() == []
    predict(PredictionWriter("out.jsonl", fields))
    assert lines()[5] == {"index": 5, "b": 1.0}


def test_several_dataloaders_are_an_error():
    with pytest.raises(PacelineError, match="the predictions of one dataloader, and there are several"):
        predict(PredictionWriter("out.jsonl"), data=[loader(), loader()])


# -- the file ------------------------------------------------------------------------------------


def test_a_file_that_exists_is_kept_unless_it_may_be_replaced():
    Path("out.jsonl").write_text("mine")
    with pytest.raises(PacelineError, match="does not overwrite a file"):
        predict(PredictionWriter("out.jsonl"))
    assert Path("out.jsonl").read_text() == "mine"
    predict(PredictionWriter("out.jsonl", overwrite=True))
    assert len(lines()) == 10


def test_until_all_is_written_the_earlier_file_stays():
    def output(x):
        seen.append(Path("out.jsonl").read_text())
        if x[0] == 8:
            raise ValueError("enough")
        return x

    seen = []
    Path("out.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="enough"):
        predict(PredictionWriter("out.jsonl", overwrite=True), output)
    assert seen == ["mine"] * 3
    assert files() == ["out.jsonl"]


def test_of_an_interrupted_prediction_there_is_no_file(capsys):
    def output(x):
        os.kill(os.getpid(), signal.SIGINT)
        return x

    with pytest.raises(KeyboardInterrupt):
        predict(PredictionWriter("out.jsonl"), output)
    assert files() == []
    assert "out.jsonl is not written: the prediction was interrupted" in capsys.readouterr().out


def test_nothing_is_written_in_other_stages():
    trainer = Trainer(accelerator="cpu", callbacks=PredictionWriter("out.jsonl"), progress=False)

    class Validated(Model):
        def validation_step(self, batch):
            return batch[0].mean()

    trainer.validate(Validated(None), loader())
    assert files() == []


@pytest.mark.parametrize("path", ["out.txt", "out", ".jsonl", "folder/.csv", 3, None])
def test_the_file_s_name_says_its_kind(path):
    with pytest.raises(PacelineError, match=r"PredictionWriter: 2 invalid arguments\n  path: "):
        PredictionWriter(path, fields="all")


# -- on ranks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    run_ranks(JOB, 3, folder=folder)
    return folder


@pytest.mark.parametrize("name", ["ordered.jsonl", "shuffled.jsonl", "few.jsonl"])
def test_ranks_write_one_file_with_each_sample_once(written, name):
    samples = 2 if name == "few.jsonl" else 23
    assert lines(written / name) == [{"index": n, "prediction": 2.0 * n} for n in range(samples)]


def test_ranks_number_the_samples_of_a_stream(written):
    found = lines(written / "stream.jsonl")
    assert [row["index"] for row in found] == list(range(10))
    assert [row["prediction"] for row in found] == [2.0 * n for n in range(10)]


def test_ranks_leave_no_parts(written):
    assert {path.name for path in written.iterdir() if path.is_file()} == {
        "ordered.jsonl",
        "shuffled.jsonl",
        "few.jsonl",
        "stream.jsonl",
        *(f"refused-{rank}" for rank in range(3)),
    }


def test_a_file_that_exists_is_an_error_on_every_rank(written):
    for rank in range(3):
        assert "does not overwrite" in (written / f"refused-{rank}").read_text()
