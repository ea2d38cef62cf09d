"""Files in a checkpoint's folder that its manifest does not list are never opened, and are named."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.small_net import Net, data
from safetensors.torch import load_file, save_file

from paceline import PacelineError, Trainer
from paceline.trainer.checkpoint.export import consolidate, export_checkpoint
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.listing import find_checkpoints, problem_of


def fit(folder, max_epochs=1, **options):
    settings = {"accelerator": "cpu", "progress": False, "loggers": False}
    trainer = Trainer(run_dir=folder, name="n", max_epochs=max_epochs, **settings)
    return trainer.fit(Net(), data(), **options)


def other_tensors(checkpoint, path):
    """A file of the same names as the checkpoint's, with other values."""
    content = load_file(checkpoint / "model-00001.safetensors")
    save_file({name: value + 1000 for name, value in content.items()}, path)


def put(kind, checkpoint):
    """Put a file there that does not belong to the checkpoint; its name."""
    path = checkpoint / {"state": "other.json", "folder": "more"}.get(kind, "zzz.safetensors")
    if kind == "tensors":
        other_tensors(checkpoint, path)
    elif kind == "junk":
        path.write_bytes(b"\x09junk")
    elif kind == "link":
        outside = checkpoint.parent.parent / "outside.safetensors"
        other_tensors(checkpoint, outside)
        path.symlink_to(outside)
    elif kind == "pipe":  # opening it would wait for ever
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        other_tensors(checkpoint, path / "model-00002.safetensors")
    else:
        path.write_text("{")
    return path.name


KINDS = ["tensors", "junk", "link", "pipe", "folder", "state"]


@pytest.mark.fault(33)
@pytest.mark.parametrize("kind", soaked(KINDS, ["tensors", "pipe", "state"]))
def test_a_file_that_the_manifest_does_not_list_changes_nothing_and_is_named_once(kind, tmp_path):
    whole = fit(tmp_path / "whole", 2)
    run = fit(tmp_path / "runs")
    expected = Net.load_from_checkpoint(run.latest).state_dict()
    checkpoint = run.latest
    name = put(kind, checkpoint)
    with pytest.warns(UserWarning, match=name) as said:
        loaded = Net.load_from_checkpoint(checkpoint)
    assert len(said) == 1
    assert str(checkpoint) in str(said[0].message)
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, expected[key])
    with pytest.warns(UserWarning, match=name) as said:
        resumed = fit(tmp_path / "runs", 2, resume="latest")
    assert len(said) == 1
    resumed, whole = (Net.load_from_checkpoint(r.latest).state_dict() for r in (resumed, whole))
    for key, value in whole.items():
        assert torch.equal(resumed[key], value)


@pytest.mark.fault(33)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_names_a_file_that_does_not_belong_there_and_fails(kind, tmp_path):
    run = fit(tmp_path / "runs")
    name = put(kind, run.latest)
    assert find_checkpoints(run.folder) == [run.latest]
    assert problem_of(run.latest) == f"whole, but its manifest does not list: {name}"
    command = [sys.executable, "-m", "paceline", "checkpoint", "verify", str(run.folder)]
    if kind == "tensors":
        found = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert found.returncode == 1
        assert name in found.stdout


@pytest.mark.fault(33)
def test_export_and_consolidate_read_what_the_manifest_lists(tmp_path):
    run = fit(tmp_path / "runs")
    expected = load_file(run.latest / "model-00001.safetensors")
    put("tensors", run.latest)
    with pytest.warns(UserWarning, match="zzz"):
        export_checkpoint(run.latest, tmp_path / "out", None)
    for name, value in load_file(tmp_path / "out/model.safetensors").items():
        assert torch.equal(value, expected[f"model.{name}"])
    with pytest.warns(UserWarning, match="zzz"):
        consolidate(run.latest, tmp_path / "step-00000003")
    for name, value in load_file(tmp_path / "step-00000003/model-00001.safetensors").items():
        assert torch.equal(value, expected[name])


@pytest.mark.fault(33)
@pytest.mark.filterwarnings("ignore:.*does not list")
@pytest.mark.parametrize("name", ["state.json", "model-00001.safetensors"])
def test_what_the_manifest_no_longer_lists_is_not_read(name, tmp_path):
    """Somebody took the file off the list, so that nothing verifies it, and changed it."""
    run = fit(tmp_path / "runs")
    manifest = json.loads((run.latest / "manifest.json").read_text())
    del manifest["checksum"], manifest["files"][name]
    (run.latest / "manifest.json").write_bytes(files.sealed(manifest))
    with pytest.raises(PacelineError) as raised:
        Net.load_from_checkpoint(run.latest)
    expected = "state.json" if name == "state.json" else "missing in the checkpoint: net.weight"
    assert expected in str(raised.value)


def test_a_checkpoint_as_it_was_written_is_loaded_without_a_warning(tmp_path):
    run = fit(tmp_path / "runs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net.load_from_checkpoint(run.latest)
        fit(tmp_path / "runs", 2, resume="latest")
    assert [problem_of(one) for one in find_checkpoints(Path(run.folder))] == ["", ""]
