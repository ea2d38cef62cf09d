"""A run that is read from its folder."""

import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import JSONLogger
from paceline.trainer.checkpoint.files import format as files


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.fixture
def run(tmp_path):
    data = DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), 4)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": tmp_path / "runs"}
    return Trainer(max_epochs=1, **settings, callbacks=JSONLogger()).fit(Net(), data)


def rename_class(run, name):
    path = run.latest / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["module"]["class"] = name
    path.write_bytes(files.sealed(manifest))


def test_load_uses_a_class_that_is_imported_already(run):
    assert type(run.load()) is Net
    assert type(run.load(which="latest")) is Net


def test_load_takes_the_class(run):
    class Other(Net):
        pass

    assert type(run.load(Other)) is Other
    assert type(Run(run.folder).load(Other, which="latest")) is Other


def test_load_imports_nothing_that_a_manifest_names(run, tmp_path, monkeypatch):
    (tmp_path / "canary_module.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w').close()\nclass Net: pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rename_class(run, "canary_module:Net")
    with pytest.raises(PacelineError, match="canary_module:Net") as raised:
        run.load()
    assert "run.load(Net)" in str(raised.value)
    assert "canary_module" not in sys.modules
    assert not (tmp_path / "canary").exists()
    assert type(run.load(Net)) is Net


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:print", "torch.nn:Linear", "os:", ":", "sys:modules"]
)
def test_load_calls_nothing_but_a_train_module(name, run):
    rename_class(run, name)
    with pytest.raises(PacelineError, match="is not imported in this process"):
        run.load()


@pytest.mark.parametrize("given", ["latest", 3, nn.Linear])
def test_load_names_what_it_takes(given, run):
    with pytest.raises(PacelineError, match="takes a subclass of TrainModule"):
        run.load(given)
    with pytest.raises(PacelineError, match="'best' or 'latest'"):
        run.load(which="newest")


NO_ROWS = [
    b"3",
    b"null",
    b'"step"',
    b"[]",
    b"{}",
    b'{"train/loss": 1}',
    b'{"step": "1"}',
    b'{"step": 1.0}',
    b'{"step": true}',
    b'{"step": -1}',
    b'{"step": 1e400}',
    b'{"step": ' + b"9" * 5000 + b"}",
    b'{"step": 1, "a": ' + b"9" * 5000 + b"}",
    b'{"step": 1, "a": ' + b"9" * 400 + b"}",
    b'{"step": 1, "a": [1]}',
    b'{"step": 1, "a": null}',
    b'{"step": 1, "a": false}',
    b'{"step": 1, "a": "high"}',
    b"[" * 5000,
    b'{"a":' * 5000,
    b'{"step": 1, "\xff": 1}',
    b"\0" * 50,
    b'{"step": 1',
]


@pytest.mark.parametrize("line", NO_ROWS, ids=lambda line: str(line[:18]))
def test_a_line_that_is_no_row_costs_itself_alone(run, line):
    rows, path = run.rows, run.folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + b"\n" + line + b"\n" + b"".join(lines[1:]) + line)
    said = "skipped 2 lines that are no rows, the first is line 2"
    with pytest.warns(UserWarning, match=said) as noted:
        assert Run(run.folder).rows == rows
    assert len(noted) == 1
    data = DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), 4)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": run.folder.parents[1]}
    with pytest.warns(UserWarning, match="no rows"):
        Trainer(max_epochs=2, **settings, callbacks=JSONLogger()).fit(Net(), data, resume="auto")
    assert Run(run.folder).rows[: len(rows)] == rows
    assert Run(run.folder).rows[-1]["step"] == 6
