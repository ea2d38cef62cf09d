"""A damaged or hostile checkpoint: always detected, always named, nothing in it is ever run."""

import json
import os
import pickle
import re
import shutil

import pytest
import torch
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.trainer.checkpoint.files import commit
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import Verification, verify
from paceline.trainer.checkpoint.files.pointers import read_pointer
from paceline.trainer.utils.paths import shown_path


def fit(folder, max_epochs=2, **options):
    settings = {"accelerator": "cpu", "progress": False, "loggers": False}
    trainer = Trainer(run_dir=folder, name="n", max_epochs=max_epochs, **settings)
    return trainer, trainer.fit(Net(), data(), **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("made"))[1].folder


@pytest.fixture
def run(made, tmp_path):
    """A run of two checkpoints, to be damaged."""
    shutil.copytree(made, tmp_path / "runs/n/1")
    return tmp_path / "runs/n/1/checkpoints"


def newest(run):
    return files.finished(run)[-1]


NAMES = ["manifest.json", "state.json", "model-00001.safetensors", "optim-00001.safetensors"]


@pytest.mark.fault(13)
@pytest.mark.parametrize("name", NAMES)
def test_a_byte_flipped_is_found_and_named_wherever_it_is(name, run, request):
    bits = (1, 0x80)
    path = newest(run) / name
    whole = path.read_bytes()
    descriptor = os.open(path, os.O_RDWR)
    try:
        soak = request.config.getoption("--soak")
        for position in range(0, len(whole), 1 if soak or len(whole) < 4000 else 11):
            for bit in bits if soak else bits[position % 2 :][:1]:
                os.pwrite(descriptor, bytes([whole[position] ^ bit]), position)
                with pytest.raises(PacelineError) as caught:
                    verify(path.parent)
                assert name in str(caught.value), position
                if name != "manifest.json":
                    assert re.search(r"got: checksum \w+(.|\n)*checksum \w+", str(caught.value))
            os.pwrite(descriptor, whole[position : position + 1], position)
    finally:
        os.close(descriptor)
    verify(path.parent)


@pytest.mark.fault(13)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing", "zeros"])
@pytest.mark.parametrize("resume", ["auto", "latest"])
def test_auto_and_latest_fall_back_and_say_so_and_a_path_raises(
    name, damage, resume, run, tmp_path, capsys
):
    bad, good = newest(run), files.finished(run)[0]
    path = bad / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(
            {
                "flip": content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :],
                "cut": content[:-3],
                "empty": b"",
                "zeros": content[:8] + bytes(len(content) - 8),
            }[damage]
        )
    gone = (name, damage) == ("manifest.json", "missing")  # then it is no checkpoint at all
    with pytest.raises(PacelineError, match="no checkpoint at this path" if gone else name):
        fit(tmp_path / "runs", resume=bad)
    capsys.readouterr()
    trainer, resumed = fit(tmp_path / "runs", resume=resume)
    said = capsys.readouterr().out
    assert f"resumes from {shown_path(good)}" in said
    assert ("skipped a damaged checkpoint" in said and name in said) or gone
    assert trainer.global_step == 6
    assert resumed.folder == run.parent


@pytest.mark.fault(13)
def test_validating_with_damaged_weights_is_refused(run, tmp_path):
    path = newest(run) / "model-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    with pytest.raises(files.CheckpointError, match="model-00001"):
        Trainer(accelerator="cpu").validate(Net(), data(), weights=newest(run))
    with pytest.raises(files.CheckpointError, match="model-00001"):
        Net.load_from_checkpoint(newest(run))


def test_blocks_of_a_large_file_are_distinguished(tmp_path, monkeypatch):
    """Each block has its own checksum: swapped blocks, and damage after the first, are found."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    content = torch.arange(1250, dtype=torch.int16).numpy().tobytes()
    commit.begin(tmp_path / "c")
    (commit.staging_of(tmp_path / "c") / "x").write_bytes(content)
    commit.commit(tmp_path / "c", {})
    manifest = verify(tmp_path / "c")
    assert len(manifest["files"]["x"]["crc32"]) == 3
    (tmp_path / "c/x").write_bytes(content[1000:2000] + content[:1000] + content[2000:])
    with pytest.raises(files.CheckpointError, match="bytes 0 to 1000"):
        verify(tmp_path / "c")
    (tmp_path / "c/x").write_bytes(content[:-1] + b"!")
    with pytest.raises(files.CheckpointError, match="bytes 2000 to 2500"):
        verify(tmp_path / "c")
    # Ranks share what is after the headers.
    (tmp_path / "c/x.safetensors").write_bytes((100).to_bytes(8, "little") + bytes(4992))
    (tmp_path / "c/x").unlink()
    commit.seal(tmp_path / "c", {}, {})
    with (tmp_path / "c/x.safetensors").open("r+b") as file:
        file.seek(4999)
        file.write(b"!")
    found = []
    for rank in range(4):
        with Verification(tmp_path / "c", rank, 4) as check:
            try:
                check.finish()
            except files.CheckpointError as error:
                found.append((rank, "bytes 4000 to 5000" in str(error)))
    assert found == [(3, True)]


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def reseal(folder, change=lambda manifest: None):
    """What somebody does who wants the checksums to match."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    for name in manifest["files"]:
        if (folder / name).exists():
            manifest["files"][name] = files.entry_of(folder / name)
    change(manifest)
    (folder / "manifest.json").write_bytes(files.sealed(manifest))


@pytest.mark.fault(14)
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_in_any_slot_runs_nothing_and_is_named(name, protocol, sealed, run, tmp_path):
    canary = tmp_path / "canary"
    (newest(run) / name).write_bytes(pickle.dumps(Canary(canary), protocol))
    if sealed and name != "manifest.json":
        reseal(newest(run))
    with pytest.raises(PacelineError, match=name):
        fit(tmp_path / "runs", resume=newest(run))
    if not name.startswith(("state", "optim")):
        with pytest.raises(PacelineError, match=name):
            Net.load_from_checkpoint(newest(run))
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()  # it would have shown


@pytest.mark.fault(14)
def test_pickles_beside_the_checkpoint_are_never_opened(run, tmp_path):
    canary = tmp_path / "canary"
    for path in (newest(run) / ".metadata", run / "latest", run / "best", newest(run) / "optimizer.bin"):
        path.write_bytes(pickle.dumps(Canary(canary)))
    trainer, _ = fit(tmp_path / "runs", max_epochs=3, resume="latest")
    assert trainer.global_step == 9
    assert not canary.exists()


@pytest.mark.fault(15)
@pytest.mark.parametrize("kind", ["above", "absolute", "link"])
def test_a_manifest_that_leads_elsewhere_is_refused(kind, run, tmp_path, capsys):
    """Whoever wrote it has put a whole file there, and made the checksums match."""
    bad, good = newest(run), files.finished(run)[0]
    inside, outside = bad / "optim-00001.safetensors", run.parent / "x"
    inside.rename(outside)
    name = {"above": "../../x", "absolute": str(outside), "link": inside.name}[kind]
    if kind == "link":
        inside.symlink_to(outside)

    def lead(manifest):
        del manifest["files"][inside.name]
        manifest["files"][name] = files.entry_of(outside)

    reseal(bad, lead)
    with pytest.raises(PacelineError, match="names a file outside its folder") as raised:
        fit(tmp_path / "runs", resume=bad)
    assert name in str(raised.value)
    capsys.readouterr()
    fit(tmp_path / "runs", resume="auto")
    assert f"resumes from {shown_path(good)}" in capsys.readouterr().out


@pytest.mark.fault(15)
@pytest.mark.parametrize("target", ["../../x", "/etc/hostname", "..", ""])
def test_a_pointer_does_not_lead_elsewhere(target, run):
    (run / "best").write_text(target)
    found = read_pointer(run / "best")
    assert found is None


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    "files_entry",
    [None, [], {"x": 3}, {"x": {"bytes": "3", "crc32": []}}, {"x": {"bytes": 3, "crc32": "ab"}}],
)
def test_a_manifest_of_another_form_is_damaged(files_entry, run):
    reseal(newest(run), lambda manifest: manifest.update(files=files_entry))
    with pytest.raises(files.CheckpointError, match="manifest"):
        verify(newest(run))
