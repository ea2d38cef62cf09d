"""Checkpoint folders: whole or not there, verified before they are read, nothing pickled."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest
import torch
from helpers.messages import refusal, says
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.trainer.checkpoint import weights
from paceline.trainer.checkpoint.files import commit
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.checkpoint.writer import CheckpointWriter, Content
from paceline.trainer.utils.paths import shown_path


class Net(TrainModule):
    def __init__(self, width=4, table=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, width)
        self.head = nn.Linear(width, 1)

    def training_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data():
    return DataLoader(TensorDataset(torch.randn(12, 3, generator=torch.Generator().manual_seed(1))), 4)


def train(folder, module=None, **arguments):
    resume = arguments.pop("resume", None)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": folder, "name": "n"}
    trainer = Trainer(**settings, **arguments)
    module = module or Net()
    return module, trainer, trainer.fit(module, data(), resume=resume)


@pytest.fixture
def run(tmp_path):
    return train(tmp_path / "runs", max_epochs=3)[2]


def test_the_folder_is_the_documented_one(run):
    names = sorted(p.name for p in run.latest.iterdir())
    assert names == ["manifest.json", "model-00001.safetensors", "optim-00001.safetensors", "state.json"]
    manifest = json.loads((run.latest / "manifest.json").read_text())
    assert list(manifest)[-1] == "checksum"
    assert manifest["format"] == 1
    assert set(manifest["files"]) == set(names) - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["bytes"] == (run.latest / name).stat().st_size
    assert {"counters", "world", "config", "metrics", "data", "module"} <= set(manifest)
    assert manifest["data"].items() >= {"dataset": "TensorDataset", "samples": 12}.items()


def test_plain_safetensors_reads_the_weights_by_name(run):
    from safetensors.torch import load_file

    weights = load_file(run.latest / "model-00001.safetensors")
    assert set(weights) == {f"model.{n}" for n in ("net.weight", "net.bias", "head.weight", "head.bias")}
    moments = load_file(run.latest / "optim-00001.safetensors")
    assert "optim.0.net.weight.exp_avg_sq" in moments


def test_nothing_is_pickled(run):
    for path in run.latest.iterdir():
        assert path.suffix in (".json", ".safetensors")
        assert not path.read_bytes().startswith(b"PK")


def regions(path: Path):
    """A byte in each part of a file: header, middle, end."""
    size = path.stat().st_size
    return sorted({0, min(9, size - 1), size // 2, size - 1})


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    "name", ["manifest.json", "state.json", "model-00001.safetensors", "optim-00001.safetensors"]
)
def test_a_flipped_byte_is_found_and_named(name, run):
    path = run.latest / name
    whole = path.read_bytes()
    for position in regions(path):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(files.CheckpointError, match="manifest" if name == "manifest.json" else name):
            verify(run.latest)
    path.write_bytes(whole)
    verify(run.latest)


@pytest.mark.fault(13)
def test_truncated_and_missing_files_are_named_with_expected_and_found(run):
    path = run.latest / "model-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(
        files.CheckpointError, match=rf"model-00001(.|\n)*{len(whole) - 5} bytes(.|\n)*{len(whole)}"
    ):
        verify(run.latest)
    path.unlink()
    with pytest.raises(files.CheckpointError, match=r"missing(.|\n)*model-00001"):
        verify(run.latest)
    for content in (b"", b'{"format": 1, "fil'):
        (run.latest / "manifest.json").write_bytes(content)
        with pytest.raises(files.CheckpointError, match="manifest"):
            verify(run.latest)


def reseal(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest)
    (folder / "manifest.json").write_bytes(files.sealed(manifest))


@pytest.mark.fault(15)
@pytest.mark.parametrize("name", ["../../x", "/etc/hostname", "sub/x"])
def test_a_manifest_may_not_name_files_elsewhere(name, run):
    reseal(run.latest, lambda m: m["files"].update({name: {"bytes": 1, "crc32": ["0"]}}))
    with pytest.raises(files.CheckpointError, match="outside its folder"):
        verify(run.latest)


@pytest.mark.fault(15)
def test_a_symlink_is_refused(run):
    path = run.latest / "state.json"
    moved = run.folder / "state.json"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(files.CheckpointError, match="outside its folder"):
        verify(run.latest)


@pytest.mark.fault(16)
def test_a_newer_format_is_refused_with_both_versions(run):
    reseal(run.latest, lambda m: m.update(format=99))
    with pytest.raises(files.NewerFormatError, match=r"format 99(.|\n)*format 1"):
        verify(run.latest)


@pytest.mark.fault(13)
def test_auto_and_latest_fall_back_and_a_path_raises(tmp_path, run, capsys):
    newest, before = run.checkpoints[-1], run.checkpoints[-2]
    (newest / "optim-00001.safetensors").write_bytes(b"x")
    with pytest.raises(files.CheckpointError, match="another size"):
        train(tmp_path / "runs", max_epochs=4, resume=newest)
    capsys.readouterr()
    _, trainer, resumed = train(tmp_path / "runs", max_epochs=4, resume="latest")
    says(capsys.readouterr().out, "skipped a damaged checkpoint", f"resumes from {shown_path(before)}")
    assert newest.with_name(newest.name + ".damaged").is_dir()
    assert trainer.global_step == 12
    assert resumed.folder == run.folder


def test_a_committed_checkpoint_is_not_written_over(run, tmp_path):
    content = {p.name: p.read_bytes() for p in run.latest.iterdir()}
    writer = CheckpointWriter(train_strategy())
    with pytest.raises(files.CheckpointError, match="never overwritten"):
        writer.write(run.latest, Content({}, str, {}), background=False)
    assert content == {p.name: p.read_bytes() for p in run.latest.iterdir()}


@pytest.mark.fault(10)
def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    class Full(Net):
        def on_save_checkpoint(self, trainer, state):
            monkeypatch.setattr(commit, "seal", broken)

    def broken(folder, manifest, entries):
        raise OSError(28, "No space left on device")

    with pytest.raises(files.CheckpointError, match=r"No space left(.|\n)*B needed, (.|\n)*B free"):
        train(tmp_path / "runs", module=Full(), max_epochs=1)
    assert list((tmp_path / "runs/n/1/checkpoints").iterdir()) == []


@pytest.mark.fault(2)
def test_killed_while_saving_keeps_the_checkpoint_before(tmp_path):
    """SIGKILL between the staging and the rename: the one before is whole, the junk is swept."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from test_format import train
            from paceline.trainer.checkpoint.files import commit
            from paceline.trainer.checkpoint.files import format as files
            rename, count = os.rename, 0
            def killed(source, target):
                if str(target).endswith("step-00000006"):
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(source, target)
            os.rename = killed
            train({str(tmp_path / "runs")!r}, max_epochs=3)
            """
        )
    )
    done = run_ranks(script, 1, folder=tmp_path, check=False)
    assert done.codes == [-signal.SIGKILL], done.output
    folder = tmp_path / "runs/n/1/checkpoints"
    assert [p.name for p in files.finished(folder)] == ["step-00000003"]
    assert any(p.name.startswith(".staging") for p in folder.iterdir())
    module, _, _ = train(tmp_path / "runs", max_epochs=3, resume="auto")
    expected, _, _ = train(tmp_path / "whole", max_epochs=3)
    assert not any(p.name.startswith(".staging") for p in folder.iterdir())
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])


def test_another_model_is_one_report(run):
    text = refusal(weights.load_weights, Net(width=5), run.latest, train_strategy())
    says(text, "net.weight: shape [4, 3] in the checkpoint, [5, 3] in the model", "3 differences")
    assert len(text.splitlines()) <= 12


def train_strategy():
    return Trainer(accelerator="cpu").strategy


def test_load_from_checkpoint_builds_the_module(tmp_path):
    module, _, run = train(tmp_path, module=Net(width=7), max_epochs=1)
    for path in (run.latest, run.folder):
        loaded = Net.load_from_checkpoint(path)
        assert loaded.hparams == {"width": 7, "table": None}
        assert all(torch.equal(v, module.state_dict()[k]) for k, v in loaded.state_dict().items())


def test_arguments_that_are_no_plain_data_are_asked_for(tmp_path):
    table = object()
    _, _, run = train(tmp_path, module=Net(table=table), max_epochs=1)
    with pytest.raises(PacelineError, match=r"does not keep: table(.|\n)*table=\.\.\."):
        Net.load_from_checkpoint(run.latest)
    assert Net.load_from_checkpoint(run.latest, table=table).hparams["table"] is table


def test_save_checkpoint_by_hand_resumes(tmp_path):
    target = tmp_path / "mine"

    class Saving(Net):
        def on_step_boundary(self, trainer):
            if trainer.global_step == 4:
                trainer.save_checkpoint(target)

    expected, trainer, _ = train(tmp_path / "whole", module=Saving(), max_epochs=3)
    with pytest.raises(PacelineError, match="no"):
        trainer.save_checkpoint(tmp_path / "later")
    module, _, run = train(tmp_path / "other", max_epochs=3, resume=target)
    assert run.folder == tmp_path / "other/n/1"
    assert run.config["parent"] == str(target)
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])


@pytest.mark.fault(11)
def test_unwritable_folder_is_found_before_step_1(tmp_path):
    (tmp_path / "runs").write_text("a file")
    module = Net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(PacelineError, match="cannot be written"):
        train(tmp_path / "runs", module=module)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_pointers_can_be_lost(run, tmp_path):
    for pointer in ("latest", "best"):
        (run.folder / "checkpoints" / pointer).unlink(missing_ok=True)
    _, trainer, _ = train(tmp_path / "runs", max_epochs=4, resume="latest")
    assert trainer.global_step == 12


@pytest.mark.fault(31)
def test_descriptors_are_closed(tmp_path):
    train(tmp_path / "warm", max_epochs=1)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        train(tmp_path / str(number), max_epochs=1)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_export_is_read_without_the_package(tmp_path):
    from safetensors.torch import load_file

    module, trainer, _ = train(tmp_path, max_epochs=1)
    weights = load_file(trainer.export(tmp_path / "out") / "model.safetensors")
    assert weights.keys() == module.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
    plain = nn.Linear(3, 4)
    plain.load_state_dict(load_file(trainer.export(tmp_path / "part", "net") / "model.safetensors"))
    assert torch.equal(plain.weight, module.net.weight)
    about = json.loads((tmp_path / "part/config.json").read_text())
    assert about["hparams"]["width"] == 4
    with pytest.raises(PacelineError, match=r"no submodule 'nett'(.|\n)*did you mean: net\?"):
        trainer.export(tmp_path / "x", "nett")
