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


@pytest.mark.parametrize(
    "line", ['rows = "notes.csv"', "rows = os.path.basename(kept)", "rows = kept.name"]
)
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


HYDRA = """\
import hydra
from lightning import Callback, LightningModule, Trainer


def main(cfg):
    model: LightningModule = hydra.utils.instantiate(cfg.model)
    trainer: Trainer = hydra.utils.instantiate(cfg.trainer)
"""


def test_classes_in_a_configuration_of_hydra_are_the_user_s_to_change(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HYDRA)
    lines = analyse(path).rewritten.decode().splitlines()
    marks = [index for index, line in enumerate(lines) if "# paceline: hydra.utils.instantiate: " in line]
    assert [lines[index + 1] for index in marks] == [
        "    trainer: Trainer = hydra.utils.instantiate(cfg.trainer)"
    ]


def test_the_table_of_a_module_is_not_the_callback_of_its_name(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from lightning.pytorch.callbacks.model_summary import ModelSummary as Shown\n"
        "from lightning.pytorch.utilities.model_summary import ModelSummary\n\n"
        "print(ModelSummary(net, max_depth=2), Shown(max_depth=2))\n"
    )
    text = analyse(path).rewritten.decode()
    assert "# paceline: ModelSummary: leave it out" in text
    assert "print(ModelSummary(net, max_depth=2), PacelineModelSummary())" in text


def test_the_seconds_of_a_timer_are_marked_where_they_are_read(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from lightning.pytorch.callbacks import Timer\n\n"
        "timer = Timer()\nprint(timer.time_elapsed('train'))\n"
    )
    assert "# paceline: timer.time_elapsed: " in analyse(path).rewritten.decode().splitlines()[-2]


SHARED = """\
from lightning import LightningModule, Trainer


class Net(LightningModule):
    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("test_error", 1.0, add_dataloader_idx=False)
        self.log_dict(self.scores, add_dataloader_idx=False)

    def on_test_epoch_end(self):
        self.log("test_mean", 1.0)


def main(net, data, trainer: Trainer):
    results = trainer.test(net, data)
    print(results[0]["{key}"])
"""


@pytest.mark.parametrize(
    ("key", "native"),
    [
        ("test_error", None),
        ("test_acc", None),  # one of self.scores, as far as is known
        ("test_mean", "test/mean"),
        ("test_acc/dataloader_idx_1", "test/1/acc"),
    ],
)
def test_values_of_one_of_several_loaders_have_its_number(key, native, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SHARED.format(key=key))
    *_, before, line = analyse(path).rewritten.decode().splitlines()
    assert line == f'    print(results["{native or key}"])'
    assert ('has its number: "test/0/acc"' in before) == (native is None)


@pytest.mark.parametrize(
    ("body", "is_marked"),
    [("self.net = T.from_pretrained('x')", True), ("self.net = nn.Linear(1, 1)", False)],
)
def test_values_that_configure_model_gives_would_be_lost(body, is_marked, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        "import lightning as L\n\n\n"
        f"class Net(L.LightningModule):\n    def configure_model(self):\n        {body}\n"
    )
    text = analyse(path).rewritten.decode()
    assert ("# paceline: configure_model: it runs on the meta device" in text) == is_marked


def test_the_same_options_of_several_trainers_are_marked_once(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from lightning import Trainer\n\n\ndef main(kept, **options):\n"
        "    one = Trainer(max_epochs=1, **options)\n"
        "    two = Trainer(max_epochs=2, **options)\n    other = Trainer(**kept)\n"
    )
    lines = analyse(path).rewritten.decode().splitlines()
    marked = [lines[index + 1].split()[0] for index, line in enumerate(lines) if "# paceline: " in line]
    assert marked == ["one", "other"]


def test_the_rank_that_the_import_of_lightning_sets_is_marked(tmp_path):
    path = tmp_path / "log.py"
    path.write_text(
        "from lightning_utilities.core.rank_zero import rank_zero_only\n\nprint(rank_zero_only.rank)\n"
    )
    assert "# paceline: rank_zero_only: " in analyse(path).rewritten.decode()
