"""A fit that fails before its first step is done leaves no folder, unless there is something in it."""

from pathlib import Path

import pytest
from helpers.small_net import Net, data

from paceline import Trainer
from paceline.callbacks import Callback, Checkpoint


class Broken(Net):
    """Fails at one place."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def fail(self, place):
        if self.place == place:
            raise RuntimeError(f"in {place}")

    def on_fit_start(self):
        self.fail("on_fit_start")

    def training_step(self, batch, batch_idx):
        self.fail("training_step")
        if self.global_step == 1:
            self.fail("the second step")
        return super().training_step(batch)

    def on_step_end(self):
        if self.global_step == 1:
            self.fail("on_step_end")

    def validation_step(self, batch):
        self.fail("validation_step")
        return super().validation_step(batch)


def failing(place, *callbacks, run_dir="runs", **options):
    settings = {"accelerator": "cpu", "progress": False, "name": "n", "max_epochs": 1, "log_every": 1}
    trainer = Trainer(run_dir=run_dir, callbacks=callbacks, **settings)
    with pytest.raises(RuntimeError) as caught:
        trainer.fit(Broken(place), data(), data(), **options)
    return trainer, "\n".join(caught.value.__notes__)


EARLY = ["on_fit_start", "validation_step", "training_step"]


@pytest.mark.parametrize("place", EARLY)
def test_a_fit_that_took_no_step_leaves_no_folder(place, tmp_path):
    trainer, notes = failing(place)
    assert list(tmp_path.iterdir()) == []
    assert trainer.folder is None
    assert "runs/" not in notes  # no line leads to what is gone
    assert "PACELINE_TRACEBACK=full shows every frame" in notes


@pytest.mark.parametrize("place", EARLY)
def test_the_next_one_has_the_first_number(place):
    failing(place)
    settings = {"accelerator": "cpu", "progress": False, "name": "n", "max_epochs": 1}
    trainer = Trainer(**settings)
    with pytest.raises(RuntimeError):
        trainer.fit(Broken(place), data(), data())
    assert trainer.fit(Net(), data(), data()).folder == Path("runs/n/1").absolute()


def test_folders_that_were_there_stay(tmp_path):
    (tmp_path / "given/n/1").mkdir(parents=True)
    failing("training_step", run_dir="given")
    assert [path.name for path in tmp_path.rglob("*")] == ["given", "n", "1"]


@pytest.mark.parametrize("place", ["on_step_end", "the second step"])
def test_a_step_that_was_done_is_kept_with_its_report(place):
    trainer, notes = failing(place)
    assert (trainer.folder / "crash-rank-0.txt").is_file()
    assert "full traceback, stacks and settings: runs/n/1/crash-rank-0.txt" in notes
    assert "1" in [path.name for path in Path("runs/n").iterdir()]


def test_a_checkpoint_is_kept():
    class Saves(Callback):
        def on_fit_start(self, trainer):
            trainer.save_checkpoint(trainer.folder / "checkpoints" / "step-00000000")

    trainer, notes = failing("training_step", Saves())
    assert (trainer.folder / "checkpoints/step-00000000/manifest.json").is_file()
    assert "crash-rank-0.txt" in notes


def test_what_a_user_has_put_there_is_kept():
    class Writes(Callback):
        def on_fit_start(self, trainer):
            (trainer.folder / "notes.txt").write_text("mine")

    trainer, _ = failing("training_step", Writes())
    assert (trainer.folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_a_resumed_run_keeps_its_folder(resume):
    settings = {"accelerator": "cpu", "progress": False, "name": "n", "max_epochs": 1}
    run = Trainer(**settings, callbacks=Checkpoint()).fit(Net(), data(), data())
    trainer = Trainer(**settings | {"max_epochs": 2})
    with pytest.raises(RuntimeError):
        trainer.fit(Broken("training_step"), data(), resume="auto" if resume == "auto" else run.latest)
    assert trainer.folder.is_dir()
    assert run.folder.is_dir()
    assert len(run.checkpoints) == 1


def test_a_run_in_which_nothing_is_left_to_do_keeps_its_folder():
    settings = {"accelerator": "cpu", "progress": False, "name": "n"}
    trainer = Trainer(**settings, max_epochs=1, limit_train_batches=1)
    run = trainer.fit(Net(), data())
    with pytest.raises(RuntimeError):
        trainer.validate(Broken("validation_step"), data())
    assert run.folder.is_dir()
