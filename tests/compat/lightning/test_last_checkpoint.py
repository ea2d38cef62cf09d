"""``ckpt_path="last"`` and ``"hpc"`` of a later process look where Lightning looks."""

import pytest
import torch

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from paceline.compat.lightning.pytorch.demos.boring_classes import BoringModel

pytestmark = pytest.mark.fit


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Net(BoringModel):
    lr = 0.1


def trainer(dirpath=None, epochs=1, root=None, **options):
    keeps = ModelCheckpoint(dirpath, save_last=True)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    callbacks = [keeps, *options.pop("callbacks", [])]
    return L.Trainer(
        max_epochs=epochs,
        limit_train_batches=3,
        limit_val_batches=1,
        callbacks=callbacks,
        default_root_dir=root,
        **quiet | options,
    )


def ends(run, path="last", module=None):
    """The steps that a fit begins and ends with."""
    begun = []

    class Begins(L.Callback):
        def on_train_start(self, trainer, pl_module):
            begun.append(trainer.global_step)

    run.callbacks.append(Begins())
    run.fit(module or Net(), ckpt_path=path)
    return begun[0], run.global_step


def test_the_folder_of_checkpoints_says_which_run_continues(capsys):
    trainer("a").fit(Net())
    assert ends(trainer("b", epochs=2)) == (0, 6)
    assert "no checkpoint in" in capsys.readouterr().out
    assert ends(trainer("a", epochs=2)) == (3, 6)  # not that of b, which is newer
    assert ends(trainer("a", epochs=3, root="elsewhere")) == (6, 9)


def test_without_such_a_folder_the_newest_run_continues():
    assert ends(trainer()) == (0, 3)
    assert ends(trainer(epochs=2)) == (3, 6)


def test_the_run_itself_continues_where_it_is_the_newest():
    first = trainer("a")
    first.fit(Net())
    second = trainer("a", epochs=2)
    assert ends(second) == (3, 6)
    assert second.ours.folder == first.ours.folder


def test_a_later_evaluation_reads_the_last_weights():
    module = Net()
    trainer("a").fit(module)

    class Tests(Net):
        def on_test_start(self):
            self.seen = self.layer.weight.tolist()

    tested = Tests()
    trainer("a").test(tested, ckpt_path="last")
    assert tested.seen == module.layer.weight.tolist()
    with pytest.raises(PacelineError, match="no fit has written"):
        trainer("b").test(Net(), ckpt_path="last")


def test_a_search_for_a_rate_is_not_done_again():
    trainer("a").fit(Net())
    finder = LearningRateFinder()
    assert ends(trainer("a", epochs=2, callbacks=[finder])) == (3, 6)
    assert finder.optimal_lr is None


def test_a_job_that_has_begun_nothing():
    with pytest.raises(PacelineError, match="there is none"):
        trainer().fit(Net(), ckpt_path="hpc")
    trainer().fit(Net())
    assert ends(trainer(epochs=2), "hpc") == (3, 6)


def test_a_file_of_another_trainer():
    torch.save({"state_dict": Net().state_dict(), "pytorch-lightning_version": "2.6.6"}, "last.ckpt")
    with pytest.raises(PacelineError, match="a run cannot resume from this file"):
        trainer(".").fit(Net(), ckpt_path="last")
