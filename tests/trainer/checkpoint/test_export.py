"""Weights for plain torch, checkpoints of many ranks as those of one, and the commands for both."""

import json
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, load, save
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint.export import consolidate, export_checkpoint
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

GOLDEN = Path(__file__).parents[2] / "golden/format-1"


class Net(TrainModule):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.head = nn.Linear(3, width), nn.Linear(width, 1)

    def training_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def validation_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data():
    return DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), 4)


@pytest.fixture
def trained(tmp_path):
    callbacks = [Checkpoint(monitor="val/loss"), Checkpoint(keep=None, weights_only=True, name="weights")]
    trainer = Trainer(
        accelerator="cpu",
        progress=False,
        run_dir=tmp_path / "runs",
        name="n",
        max_epochs=2,
        callbacks=callbacks,
    )
    module = Net()
    return module, trainer.fit(module, data(), data())


def paceline(*arguments, cwd=None):
    return run_ranks("paceline", 1, *arguments, folder=cwd or Path.cwd(), seconds=120, check=False)


def equal(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


# -- export --------------------------------------------------------------------------------------


def test_a_checkpoint_is_exported_without_its_class(trained, tmp_path):
    module, run = trained
    export_checkpoint(run.latest, tmp_path / "out", None)
    equal(load_file(tmp_path / "out/model.safetensors"), dict(module.state_dict()))
    about = json.loads((tmp_path / "out/config.json").read_text())
    assert about["hparams"] == {"width": 4}
    equal(dict(Net.load_from_checkpoint(tmp_path / "out").state_dict()), dict(module.state_dict()))
    plain = nn.Linear(3, 4)
    plain.load_state_dict(
        load_file(export_checkpoint(run.latest, tmp_path / "net", "net") / "model.safetensors")
    )
    assert torch.equal(plain.weight, module.net.weight)
    with pytest.raises(PacelineError, match=r"no submodule 'nett'(.|\n)*head, net(.|\n)*did you mean: net"):
        export_checkpoint(run.latest, tmp_path / "x", "nett")


def test_a_module_is_built_from_the_arguments_that_were_exported(tmp_path):
    trainer, module = Trainer(max_steps=1, run_dir=None, progress=False), Net(width=7)
    trainer.fit(module, [torch.ones(2, 3)])
    trainer.export(tmp_path / "out")
    loaded = Net.load_from_checkpoint(tmp_path / "out")
    assert loaded.hparams == {"width": 7}
    equal(dict(loaded.state_dict()), dict(module.state_dict()))


def test_what_a_part_keeps_as_its_config_is_written_its_own_way(tmp_path):
    """A Hugging Face model writes config.json itself, so that its from_pretrained reads the folder."""

    class Config:
        def save_pretrained(self, folder):
            (Path(folder) / "config.json").write_text('{"model_type": "tiny"}')

    class Body(nn.Linear):
        config = Config()

        @classmethod
        def from_pretrained(cls, folder):
            raise NotImplementedError

    class Wraps(Net):
        def __init__(self):
            super().__init__()
            self.net = Body(3, 4)

    trainer = Trainer(accelerator="cpu", progress=False, fast_dev_run=True)
    trainer.fit(Wraps(), data())
    trainer.export(tmp_path / "out", "net")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {"model_type": "tiny"}
    assert set(load_file(tmp_path / "out/model.safetensors")) == {"weight", "bias"}


# -- consolidate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["fsdp", "ddp", "deepspeed_stage_2"])
def test_many_ranks_files_become_one_of_each_kind(writer, tmp_path):
    source, target = GOLDEN / writer, tmp_path / "one"
    assert len(list(source.glob("model-*"))) == 2
    consolidate(source, target)
    assert sorted(p.name for p in target.iterdir()) == [
        "manifest.json", "model-00001.safetensors", "optim-00001.safetensors", "state.json"
    ]  # fmt: skip
    verify(target)
    whole = load_file(target / "model-00001.safetensors") | load_file(target / "optim-00001.safetensors")
    found = {name: torch.zeros_like(value) for name, value in whole.items()}
    load(found, storage_reader=HuggingFaceStorageReader(str(source)), no_dist=True)
    equal(whole, found)
    with pytest.raises(files.CheckpointError, match="never overwritten"):
        consolidate(source, target)


def test_torchs_own_reader_and_writer_have_the_same_files(trained, tmp_path):
    """torch.distributed.checkpoint reads ours, and writes the same header and bytes."""
    _, run = trained
    ours = load_file(run.latest / "model-00001.safetensors")
    found = {name: torch.zeros_like(value) for name, value in ours.items()}
    for path in (run.latest / "optim-00001.safetensors", run.latest / "state.json"):
        assert path.is_file()
    load(found, storage_reader=HuggingFaceStorageReader(str(run.latest)), no_dist=True)
    equal(found, ours)
    save(
        ours,
        storage_writer=HuggingFaceStorageWriter(str(tmp_path / "t"), save_distributed=True),
        no_dist=True,
    )
    (theirs,) = (tmp_path / "t").glob("*.safetensors")
    mine = run.latest / "model-00001.safetensors"

    def header(path):
        content = path.read_bytes()
        return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]

    expected, written = header(theirs), header(mine)
    for one in (expected, written):
        one["DCP_SHARDING_INFO"] = json.loads(one["DCP_SHARDING_INFO"])
    assert written == expected


# -- commands ------------------------------------------------------------------------------------


def test_the_commands(trained, tmp_path):
    _, run = trained
    listed = paceline("checkpoint", "ls", cwd=tmp_path)
    assert listed.codes == [0], listed.output
    lines = listed.stdout.splitlines()
    assert lines[0].split() == ["checkpoint", "step", "epoch", "size", "written", "by", "at"]
    assert [line.split()[0].rpartition("/")[2] for line in lines[1:]] == [
        "step-00000003", "step-00000006", "weights-00000003", "weights-00000006"
    ]  # fmt: skip
    assert "single x 1" in lines[2]
    assert lines[2].endswith("best, latest")
    assert lines[4].endswith("weights only")

    shown = paceline("checkpoint", "show", run.folder).stdout
    assert f"{run.latest}" in shown
    assert "Net(width=4)" in shown
    assert "tensor      optim.0.net.weight.exp_avg  [4, 3]" in shown
    as_json = json.loads(paceline("checkpoint", "show", run.folder, "--json").stdout)
    assert as_json["tensors"]["optim.0.net.weight.exp_avg"] == [4, 3]
    listed = json.loads(paceline("checkpoint", "ls", "--json", cwd=tmp_path).stdout)
    assert [(one["step"], one["marks"]) for one in listed[:2]] == [(3, []), (6, ["best", "latest"])]

    assert paceline("export", run.folder, "out", "--submodule", "net", cwd=tmp_path).codes == [0]
    assert set(load_file(tmp_path / "out/model.safetensors")) == {"weight", "bias"}
    assert paceline("checkpoint", "consolidate", run.latest, "one", cwd=tmp_path).codes == [0]
    verify(tmp_path / "one")

    whole = paceline("checkpoint", "verify", run.folder)
    assert whole.codes == [0]
    assert [line.rpartition(": ")[2] for line in whole.stdout.splitlines()] == ["whole"] * 4
    path = run.latest / "optim-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    damaged = paceline("checkpoint", "verify", run.folder)
    assert damaged.codes == [1]
    assert "step-00000006: DAMAGED" in damaged.stdout
    assert "optim-00001" in damaged.stdout
    as_json = json.loads(paceline("checkpoint", "verify", run.folder, "--json").stdout)
    assert [one["whole"] for one in as_json] == [True, False, True, True]


@pytest.mark.parametrize(
    "arguments", [("ls",), ("verify", "x"), ("show", "x"), ("consolidate", "x", "y")], ids=lambda a: a[0]
)
def test_a_wrong_path_is_one_sentence(arguments, tmp_path):
    done = paceline("checkpoint", *arguments, cwd=tmp_path)
    assert done.codes == [1]
    assert "there is no checkpoint at this path" in done.stderr
    assert "Traceback" not in done.stderr
