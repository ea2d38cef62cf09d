"""What the system refuses: folders that cannot be written, other file systems, a writer that fails."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.__main__ import main
from paceline.callbacks import Callback, Checkpoint, CSVLogger, TensorBoard
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

NOBODY = 65534
MEMORY = Path("/dev/shm")


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.steps = 0

    def training_step(self, batch):
        self.steps += 1
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(folder, *callbacks, module=None, max_epochs=2, **options):
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "max_epochs": max_epochs}
    settings |= {name: options.pop(name) for name in list(options) if name != "resume"}
    trainer = Trainer(run_dir=folder, name="n", callbacks=callbacks, **settings)
    samples = TensorDataset(torch.randn(20, 3, generator=torch.Generator().manual_seed(1)))
    return trainer, trainer.fit(module or Net(), DataLoader(samples, 4, shuffle=True), **options)


# -- a folder that cannot be written -----------------------------------------------------------


@contextmanager
def as_another_user(folder):
    """What is inside may not write to ``folder``; root ignores the mode bits, so it is nobody then."""
    root = os.geteuid() == 0
    folder.chmod(0o755 if root else 0o555)
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def open_folder():
    """A folder that another user can come to."""
    found = Path(tempfile.mkdtemp(prefix="folder-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.mark.fault(11)
def test_a_folder_of_another_user_is_reported_before_step_1(open_folder, tmp_path):
    fit(tmp_path, max_epochs=1)  # imports what another user may not read
    (open_folder / "n").mkdir()
    module = Net()
    with as_another_user(open_folder / "n"), pytest.raises(PacelineError) as raised:
        fit(open_folder, module=module)
    assert "the run folder cannot be written" in str(raised.value)
    assert str(open_folder / "n") in str(raised.value)
    assert "run_dir" in str(raised.value)
    assert module.steps == 0


@pytest.mark.fault(11)
def test_a_run_of_another_user_is_not_continued(open_folder):
    fit(open_folder, max_epochs=1)
    module = Net()
    with as_another_user(open_folder / "n/1"), pytest.raises((PacelineError, OSError), match=r"n/1"):
        fit(open_folder, module=module, resume="latest")
    assert module.steps == 0


@pytest.mark.fault(11)
def test_a_disk_that_is_only_to_be_read_is_reported_before_step_1(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "paceline-test", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, timeout=20).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("takes the right to mount")
    module = Net()
    try:
        with pytest.raises(PacelineError, match="the run folder cannot be written"):
            fit(tmp_path, module=module)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], capture_output=True, timeout=20)
    assert module.steps == 0


# -- another file system than TMPDIR ---------------------------------------------------------------


@pytest.fixture
def in_memory():
    if not os.access(MEMORY, os.W_OK):
        pytest.skip("takes /dev/shm")
    found = Path(tempfile.mkdtemp(prefix="files-", dir=MEMORY))
    yield found
    shutil.rmtree(found)


@pytest.mark.fault(12)
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_checkpoint_is_staged_beside_its_target(in_memory, tmp_path, monkeypatch, swapped, background):
    runs, temporary = (tmp_path / "there", in_memory) if swapped else (in_memory, tmp_path / "there")
    (tmp_path / "there").mkdir()
    if runs.stat().st_dev == temporary.stat().st_dev:
        pytest.skip("takes two file systems")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(temporary)
    rename, moved = os.rename, []

    def noted(source, target):
        moved.append((Path(source), Path(target)))
        rename(source, target)

    monkeypatch.setattr(os, "rename", noted)
    (temporary / "probe").write_text("")
    with pytest.raises(OSError, match="cross-device"):
        rename(temporary / "probe", runs / "probe")  # a rename from there could not have been
    (temporary / "probe").unlink()
    _, run = fit(runs, Checkpoint(2, keep=None, background=background))
    assert [path.name for path in run.checkpoints] == [f"step-{step:08d}" for step in (2, 4, 6, 8, 10)]
    for (source, target), checkpoint in zip(moved, run.checkpoints, strict=True):
        assert target == checkpoint
        assert source.parent == checkpoint.parent
        verify(checkpoint)
    assert list(temporary.iterdir()) == []


# -- no room ---------------------------------------------------------------------------------


@pytest.fixture
def disk(capsys):
    """A disk that ``full()`` fills within its block; what is printed meanwhile goes into memory."""
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Disk:
        def full(self):
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return Disk()


@pytest.mark.fault(48)
@pytest.mark.parametrize("resume", [None, "latest"])
def test_a_disk_that_is_full_before_the_start_is_an_error_before_step_1(resume, tmp_path, disk):
    fit(tmp_path, max_epochs=1, loggers=["-tensorboard", "-curves"])
    module = Net()
    with (
        disk.full(),
        pytest.raises(PacelineError, match=r"(?s)n/\d.*File too large.*fix: make room") as raised,
    ):
        fit(tmp_path, module=module, resume=resume, loggers=["-tensorboard", "-curves"])
    assert str(tmp_path) in str(raised.value)
    assert module.steps == 0


@pytest.mark.fault(48)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of tensorboard's thread
def test_a_disk_that_fills_up_is_a_warning_of_each_logger(tmp_path, disk, capsys):
    pytest.importorskip("tensorboard")

    class Fills(Callback):
        def on_step_end(self, trainer):
            written = (trainer.folder / "tb").glob("*")
            if trainer.global_step > 2 and any(file.stat().st_size for file in written):
                disk.full()

        def on_step_start(self, trainer):
            deadline = time.monotonic() + 60
            while trainer.global_step == 3 and not any((trainer.folder / "tb").glob("*")):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    loggers = [TensorBoard(), CSVLogger(), "-curves"]
    with disk:
        trainer, _ = fit(tmp_path, Fills(), loggers=loggers, checkpoint=False, log_every=1)
    printed = capsys.readouterr().out
    assert trainer.global_step == 10
    for name in ("TensorBoard", "CSVLogger", "JSONLogger"):
        assert re.search(rf"warning: {name} .*File too large", printed), printed


@pytest.mark.fault(48)
@pytest.mark.parametrize("command", ["report", "plot", "export", "consolidate"])
def test_a_command_that_cannot_write_says_so_in_one_line(command, tmp_path, disk, monkeypatch):
    if command == "plot":
        pytest.importorskip("matplotlib")
    _, run = fit(tmp_path, max_epochs=1, loggers=["-tensorboard", "-curves"])
    words = {
        "report": ["report", run.folder, "--out", tmp_path / "new/page.html"],
        "plot": ["plot", run.folder, "--out", tmp_path / "new.png"],
        "export": ["export", run.folder, tmp_path / "new"],
        "consolidate": ["checkpoint", "consolidate", run.folder, tmp_path / "new"],
    }
    monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words[command])])
    with disk.full(), pytest.raises(SystemExit) as raised:
        main()
    text = str(raised.value.code)
    assert text.startswith("error: ")
    assert "File too large" in text
    assert "make room" in text
    assert "Traceback" not in text


# -- a writer that fails -----------------------------------------------------------------------


def content(checkpoint):
    """Tensors, counters and generators."""
    tensors = [load_file(path) for path in sorted(checkpoint.glob("*.safetensors"))]
    state = json.loads((checkpoint / "state.json").read_text())
    del state["counters"]["elapsed"]
    values = {name: value.tolist() for part in tensors for name, value in part.items()}
    return values, state["counters"], state["ranks"]


class Settled(Net):
    """Waits in each step for the checkpoint that is being written."""

    def on_step_start(self):
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join(30)


@pytest.mark.fault(6)
def test_a_save_that_failed_in_the_background_leaves_training_as_it_was(tmp_path, monkeypatch):
    """The run ends with the next step and saves what it has: what one has that nothing happened to."""
    _, whole = fit(tmp_path / "whole", Checkpoint(1, keep=None))
    save_file = safetensors.torch.save_file

    def full(tensors, path, metadata=None):
        if "00000004" in path:
            raise OSError(28, "No space left on device")
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    module = Settled()
    with pytest.raises(files.CheckpointError, match=r"No space left(.|\n)*B needed, (.|\n)*B free"):
        fit(tmp_path / "cut", Checkpoint(2, keep=None), module=module)
    assert module.steps == 5
    first, last = Run(tmp_path / "cut/n/1").checkpoints
    assert (first.name, last.name) == ("step-00000002", "step-00000005")
    assert content(last) == content(whole.checkpoints[4])
