"""What --write says of files that a program reads back, and of folders before a run has one."""

import pytest

from paceline.compat.migrate.analysis import analyse

HEAD = """\
import os
from pathlib import Path

from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


def main(module, rows, kept):
    logger = CSVLogger("logs")
    best = ModelCheckpoint(monitor="val_loss")
    trainer = Trainer(max_epochs=1, logger=logger, callbacks=[best])
"""


def written(tmp_path, body):
    path = tmp_path / "train.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body))
    report = analyse(path)
    assert report.error is None
    return report.rewritten.decode().partition("callbacks=[best])\n")[2].splitlines()


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ('rows = open(Path("logs") / "metrics.csv")', "metrics.csv: columns are train/loss"),
        ('rows = open(f"{kept}/metrics.csv")', "metrics.csv: columns are train/loss"),
        ("rows = EventAccumulator(kept)", "EventAccumulator: event files are in tb/"),
        ("rows = os.path.basename(best.best_model_path)", "a checkpoint is a folder"),
        ("rows = Path(kept.last_model_path).parent.name", "a checkpoint is a folder"),
        ('rows = best.best_model_path.endswith("x")', "it is a pathlib.Path"),
    ],
)
def test_what_is_read_back_has_other_names(tmp_path, line, mark):
    comment, _ = written(tmp_path, [line])
    assert comment.startswith("    # paceline: ")
    assert mark in comment


@pytest.mark.parametrize("line", ['rows = "notes.csv"', "rows = os.path.basename(kept)", "rows = kept.name"])
def test_other_files_are_not_marked(tmp_path, line):
    assert written(tmp_path, [line]) == [f"    {line}"]


def test_the_name_of_a_loader_s_value_is_translated_wherever_it_is(tmp_path):
    body = written(tmp_path, ['print(rows["val_loss/dataloader_idx_2"], rows["x/dataloader_idx_2"])'])
    assert body == ['    print(rows["val/2/loss"], rows["x/dataloader_idx_2"])']


def test_the_run_s_folder_is_known_only_after_a_fit(tmp_path):
    use = "os.makedirs(logger.log_dir)"
    comment, line, *_ = written(tmp_path, [use, "trainer.fit(module)"])
    assert comment.startswith("    # paceline: logger.log_dir: trainer.folder is None until fit begins")
    assert line == f"    {use}"
    assert written(tmp_path, ["trainer.fit(module)", use])[1] == "    os.makedirs(trainer.folder)"
    after = written(tmp_path, ["trainer.fit(module)", "rows(logger.log_dir, trainer.log_dir)"])
    assert after[1] == "    rows(str(trainer.folder), str(trainer.folder))"
    comment, _, *_ = written(tmp_path, ["os.makedirs(trainer.logger.log_dir)", "trainer.fit(module)"])
    assert "trainer.folder is None until fit begins" in comment
