"""Checkpoints written while training continues hold their step's state, bit for bit, and fail aloud."""

import threading
import time
from functools import partial

import pytest
import safetensors.torch
import torch
from helpers.pairwise import soaked
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint import writer
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.checkpoint.host_copy import HostCopy


class Net(TrainModule):
    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 4))
        self.head = nn.Linear(4, 4)
        if tied:
            self.head.weight = self.net[0].weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def training_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.05)


def data():
    return DataLoader(TensorDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(1))), 8)


def fit(folder, *callbacks, module=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "max_epochs": 2}
    trainer = Trainer(run_dir=folder, name="n", callbacks=callbacks, **(usual | settings))
    return trainer, trainer.fit(module or Net(), data())


def tensors(checkpoint):
    found = {}
    for path in checkpoint.glob("*.safetensors"):
        found |= load_file(path)
    return found


def same(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def write_slowly(monkeypatch, seconds=0.02):
    """The thread begins to write only after training has continued."""
    write = writer.write_shard

    def slowly(target, shard):
        time.sleep(seconds)
        return write(target, shard)

    monkeypatch.setattr(writer, "write_shard", slowly)


class Rescales(Net):
    """An embedding's forward rescales its weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, max_norm=0.1)

    def training_step(self, batch):
        return super().training_step([batch[0] + self.table((batch[0][:, 0] > 0).long())])


class Teacher(Net):
    """Changes what no optimizer updates."""

    def training_step(self, batch):
        self.frozen.data.mul_(2)
        return super().training_step(batch)


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch):
        self.manual_backward(super().training_step(batch))
        self.optimizers().step()
        self.optimizers().zero_grad()


class Skips(Net):
    """Changes weights in a hook, also after a step without an update."""

    def training_step(self, batch):
        loss = super().training_step(batch)
        return loss * float("nan") if self.global_step % 3 == 2 else loss

    def on_step_end(self):
        self.head.weight.data.mul_(1.01)


class Changes(Net):
    """Halves a weight before each forward."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def training_step(self, batch):
        with torch.no_grad():
            weight = self.head.weight
            if self.how == "in place":
                weight.mul_(0.5)
            elif self.how == "data":
                weight.data.mul_(0.5)
            elif self.how == "assigned":
                weight.data = weight.data * 0.5
            else:
                weight.data[-1, -1] *= 0.5
        return super().training_step(batch)


MODULES = {
    "usual": Net,
    "tied": lambda: Net(tied=True),
    "rescales": Rescales,
    "teacher": Teacher,
    "manual": Manual,
    "skips": Skips,
    **{how: partial(Changes, how) for how in ("in place", "data", "assigned", "the last word")},
}


@pytest.mark.parametrize("name", soaked(list(MODULES), ["usual", "in place", "tied", "manual", "skips"]))
def test_they_equal_those_that_training_waited_for(tmp_path, monkeypatch, name):
    """Whatever changes a tensor, and whenever: the copy was taken before training continued."""
    settings = {"nonfinite": "skip"} if name == "skips" else {}
    before = Checkpoint(1, keep=None, background=False)
    _, waited = fit(tmp_path / "a", before, module=MODULES[name](), **settings)
    write_slowly(monkeypatch)
    _, run = fit(tmp_path / "b", Checkpoint(1, keep=None), module=MODULES[name](), **settings)
    assert [p.name for p in run.checkpoints] == [f"step-{n:08d}" for n in range(1, 11)]
    for one, other in zip(waited.checkpoints, run.checkpoints, strict=True):
        same(tensors(one), tensors(other))
        verify(other)


# -- the memory of the copies --------------------------------------------------------------------


def copied(copy, tensors):
    copy.begin()
    found = {name: copy.take(name, tensor) for name, tensor in tensors.items()}
    copy.planned()
    copy.wait()
    return found


def some_tensors():
    return {
        "a": torch.randn(3, 5),
        "half": torch.randn(7).to(torch.bfloat16),
        "scalar": torch.tensor(2.0),
        "none": torch.zeros(0, 4),
        "strided": torch.randn(4, 6).t(),
    }


@pytest.mark.parametrize("reserved", ["nothing", "all", "too little"])
def test_memory_is_kept_from_one_copy_to_the_next(reserved):
    copy, given = HostCopy(), some_tensors()
    if reserved != "nothing":
        copy.reserve(list(given.values())[: 5 if reserved == "all" else 2])
    first = copied(copy, given)
    same(first, given)
    again = some_tensors()
    second = copied(copy, again)
    same(second, again)
    assert all(second[name] is first[name] for name in given)
    less = {"a": torch.randn(3, 5), "scalar": torch.tensor([1.0])}  # one went, one has another shape
    same(copied(copy, less), less)
    assert copy._buffers.keys() == less.keys()


def test_reserved_memory_is_used_for_the_first_copy():
    copy, given = HostCopy(), some_tensors()
    copy.reserve(given.values())
    reserve = copy._reserve.untyped_storage().data_ptr()
    found = copied(copy, given)
    shared = {t.untyped_storage().data_ptr() for t in found.values() if t.numel()}
    assert shared == {reserve}
    assert all(t.data_ptr() % 64 == 0 for t in found.values() if t.numel())


def test_a_run_reserves_what_its_first_save_takes(tmp_path, monkeypatch):
    left = []
    planned = HostCopy.planned

    def looks(copy):
        left.append(copy._reserve)
        planned(copy)

    monkeypatch.setattr(HostCopy, "planned", looks)
    fit(tmp_path, Checkpoint(4))
    assert left[0].numel() == 0
    assert left[1:] == [None] * 2


def test_one_is_under_way_at_most_and_none_after_fit(tmp_path, monkeypatch):
    save_file, at_once, most = safetensors.torch.save_file, 0, 0

    def slowly(*args, **kwargs):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        save_file(*args, **kwargs)
        at_once -= 1

    monkeypatch.setattr(safetensors.torch, "save_file", slowly)
    often, rarely = Checkpoint(1, keep=2), Checkpoint("1ep", keep=None, name="rarely")
    _, run = fit(tmp_path, often, rarely)
    assert most == 1
    assert [p.name[-2:] for p in run.checkpoints] == ["05", "09", "10"]
    assert not [t for t in threading.enumerate() if t.name == "checkpoint"]


def fails_at(monkeypatch, *steps):
    """Writing fails for the checkpoints of these steps."""
    save_file = safetensors.torch.save_file

    def maybe(tensors, path, metadata=None):
        if any(f"{step:08d}" in path for step in steps):
            raise OSError(30, "Read-only file system")
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", maybe)


@pytest.mark.fault(6)
@pytest.mark.parametrize("background", [False, True])
def test_a_failed_save_ends_the_run_and_is_reported(tmp_path, monkeypatch, background):
    fails_at(monkeypatch, 6)
    trainer = None

    class Waits(Net):
        def training_step(self, batch):
            for thread in threading.enumerate():
                if thread.name == "checkpoint":
                    thread.join(60)
            return super().training_step(batch)

        def on_setup(self, of, stage):
            nonlocal trainer
            trainer = of

    with pytest.raises(
        files.CheckpointError, match=r"saving the checkpoint failed(.|\n)*Read-only file system"
    ):
        fit(tmp_path, Checkpoint(3, background=background), module=Waits(), max_epochs=9)
    # Reported with the next step, with which nothing else is due.
    assert trainer.global_step == (7 if background else 6)
    left = [p.name for p in Run(tmp_path / "n/1").checkpoints]
    # In the background a step was made since: it is written before the error is raised.
    assert left == (
        ["step-00000003", f"step-{trainer.global_step:08d}"] if background else ["step-00000003"]
    )


@pytest.mark.fault(6)
@pytest.mark.parametrize("background", [False, True])
def test_a_failed_save_may_be_a_warning(tmp_path, monkeypatch, capsys, background):
    plain, _ = fit(tmp_path / "plain", Checkpoint(2))
    fails_at(monkeypatch, 4, 6)
    capsys.readouterr()
    callback = Checkpoint(2, keep=2, background=background, on_save_error="warn")
    trainer, run = fit(tmp_path, callback)
    assert trainer.global_step == 10
    said = capsys.readouterr().out
    assert said.count("saving the checkpoint failed") == 2
    assert [p.name[-2:] for p in run.checkpoints] == ["08", "10"]
    same(dict(trainer.module.state_dict()), dict(plain.module.state_dict()))


def test_a_best_that_could_not_be_written_is_none(tmp_path, monkeypatch):
    """The best before stays the best: its checkpoint, its score and its pointer."""
    fails_at(monkeypatch, 10)
    scores = iter([3.0, 2.0, 2.5])

    class Scored(Net):
        def on_train_epoch_end(self, trainer):
            trainer.log("score", next(scores))

    best = Checkpoint("1h", monitor="train/score", mode="min", keep=1, on_save_error="warn")
    _, run = fit(tmp_path, best, module=Scored(), max_epochs=3)
    assert best.best_score == 2.5
    assert run.best.name == "step-00000015"


def test_an_exception_ends_the_save_under_way(tmp_path, monkeypatch):
    save_file, begun, broken = safetensors.torch.save_file, threading.Event(), threading.Event()

    def slowly(*args, **kwargs):
        begun.set()
        assert broken.wait(60)
        save_file(*args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "save_file", slowly)

    class Breaks(Net):
        def training_step(self, batch):
            if self.global_step == 2:
                assert begun.wait(60)
                broken.set()
                raise RuntimeError("broken")
            return super().training_step(batch)

    with pytest.raises(RuntimeError, match="broken"):
        fit(tmp_path, Checkpoint(2), module=Breaks())
    assert [p.name for p in Run(tmp_path / "n/1").checkpoints] == ["step-00000002"]
    assert not [t for t in threading.enumerate() if t.name == "checkpoint"]


def test_older_ones_go_only_when_the_new_one_is_there(tmp_path, monkeypatch):
    seen = []
    save_file = safetensors.torch.save_file

    def watched(tensors, path, metadata=None):
        folder = tmp_path / "n/1/checkpoints"
        seen.append([p.name[-2:] for p in files.finished(folder)])
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", watched)
    fit(tmp_path, Checkpoint(5, keep=1))
    assert seen == [[], [], ["05"], ["05"]]  # model and moments of each


# -- policy --------------------------------------------------------------------------------------


def test_weights_only(tmp_path, capsys):
    _, run = fit(tmp_path, Checkpoint("1ep", weights_only=True), max_epochs=2)
    folder = run.folder / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["weights-00000005", "weights-00000010"]
    newest = folder / "weights-00000010"
    assert sorted(p.name for p in newest.iterdir()) == [
        "manifest.json",
        "model-00001.safetensors",
        "state.json",
    ]
    assert run.checkpoints == []
    loaded = Net.load_from_checkpoint(run.folder)
    same({f"model.{n}": t for n, t in loaded.state_dict().items()}, tensors(newest))
    with pytest.raises(PacelineError, match=r"from weights alone(.|\n)*load_from_checkpoint"):
        Trainer(accelerator="cpu", run_dir=tmp_path, name="n").fit(Net(), data(), resume=newest)
    with pytest.raises(PacelineError, match="no checkpoint to resume from"):
        Trainer(accelerator="cpu", run_dir=tmp_path, name="n").fit(Net(), data(), resume="latest")


def test_the_newest_checkpoint_is_one_to_resume_from(tmp_path):
    trainer, run = fit(tmp_path, Checkpoint(4), Checkpoint(3, weights_only=True, name="w"), max_steps=6)
    assert (run.folder / "checkpoints/weights-00000006").is_dir()
    assert trainer.checkpoints.newest.name in [one.name for one in run.checkpoints]


def test_permanent_and_ephemeral_ones(tmp_path):
    ephemeral, permanent = Checkpoint(1, keep=1), Checkpoint("1ep", keep=None, name="milestones")
    _, run = fit(tmp_path, ephemeral, permanent, max_epochs=2, max_steps=9)
    assert [p.name[-2:] for p in run.checkpoints] == ["05", "09"]


def test_two_that_monitor_have_pointers_of_their_own(tmp_path):
    class Scored(Net):
        def on_train_epoch_end(self, trainer):
            trainer.log("up", float(trainer.epoch))
            trainer.log("down", float(-trainer.epoch))

    first = Checkpoint("1ep", monitor="train/up", mode="max", keep=1)
    second = Checkpoint("1ep", monitor="train/down", mode="max", keep=1, name="down")
    _, run = fit(tmp_path, first, second, module=Scored(), max_epochs=3)
    folder = run.folder / "checkpoints"
    assert (folder / "best").read_text().strip() == "step-00000015"
    assert (folder / "best-down").read_text().strip() == "step-00000005"
    assert [p.name[-2:] for p in run.checkpoints] == ["05", "15"]


def test_a_best_of_another_value_is_none(tmp_path):
    """The monitor was changed, or taken away, since the checkpoint."""

    class Scored(Net):
        def on_train_epoch_end(self, trainer):
            trainer.log("score", 5.0 - trainer.epoch)
            trainer.log("other", 9.0 - trainer.epoch)

    def go_on(checkpoint, epochs, resume="latest"):
        trainer = Trainer(
            accelerator="cpu", progress=False, loggers=False, run_dir=tmp_path, name="n",
            max_epochs=epochs, callbacks=checkpoint,
        )  # fmt: skip
        return trainer.fit(Scored(), data(), resume=resume)

    go_on(Checkpoint(monitor="train/score", mode="min"), 2, resume=None)
    other = Checkpoint(monitor="train/other", mode="min")
    run = go_on(other, 3)
    assert other.best_score == 7.0
    assert run.best.name == "step-00000015"
    none = Checkpoint()
    go_on(none, 4)
    assert none.best_score is None
    assert not (run.folder / "checkpoints" / "best-None").exists()


@pytest.mark.parametrize(
    ("given", "ours"),
    [("save_weights_only", "weights_only"), ("save_top_k", "keep"), ("async_save", "background")],
)
def test_other_trainers_names_are_answered(given, ours):
    with pytest.raises(PacelineError, match=ours):
        Checkpoint(**{given: True})
    with pytest.raises(PacelineError, match="'raise', 'warn'"):
        Checkpoint(on_save_error="ignore")


@pytest.mark.parametrize(
    "arguments", [{"name": "a/b"}, {"name": 3}, {"name": "n" * 200}, {"background": None}, {"monitor": 3}]
)
def test_arguments_of_another_kind_are_reported(arguments):
    with pytest.raises(PacelineError, match="Checkpoint"):
        Checkpoint(**arguments)


def test_the_failure_of_a_last_save_is_reported_after_that_of_one_before(tmp_path, monkeypatch, capsys):
    fails_at(monkeypatch, 8, 10)
    callback = Checkpoint(4, on_save_error="warn")
    fit(tmp_path, callback)
    assert capsys.readouterr().out.count("saving the checkpoint failed") == 2
    assert callback.state_dict()["saved"] == ["step-00000004"]
