"""Images, histograms, tables and texts on their way from a run to its loggers."""

import csv
import io
import json
import threading

import numpy as np
import pytest
import torch
from helpers.loggers import NO_DEFAULTS
from PIL import Image as pillow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import (
    Callback,
    Checkpoint,
    CSVLogger,
    Image,
    JSONLogger,
    Logger,
    TensorBoard,
    Text,
)
from paceline.trainer.metrics import logger_queue
from paceline.trainer.metrics.logger_queue import LoggerQueue

PIXELS = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
ROWS = [("cat", 0.5), ("a | b", None)]


class Module(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.log_image("inputs", PIXELS, caption="the first")
            self.log_histogram("weights", torch.tensor([0.0, 1.0, 1.0, 4.0]), bins=4)
            self.log_table("samples", ["label", "score"], ROWS)
            self.log_text("note", f"epoch {self.epoch}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def loader():
    x = torch.linspace(-1, 1, 24).reshape(12, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def fit(loggers, module=None, callbacks=(), resume=None, **settings):
    settings = {"progress": False, "checkpoint": False, "max_epochs": 2, "log_every": 1} | settings
    loggers = loggers and [*loggers, *NO_DEFAULTS]  # those alone
    trainer = Trainer(loggers=loggers, callbacks=callbacks, name="r", accelerator="cpu", **settings)
    return trainer.fit(module or Module(), loader(), loader(), resume=resume)


class Keeps(Logger):
    shows = (Image, Text)

    def __init__(self):
        self.media, self.threads = [], set()

    def write(self, row):
        pass

    def write_media(self, row, name, media):
        self.media.append((row, name, media))
        self.threads.add(threading.current_thread().name)


def events(run):
    size = dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)
    found = EventAccumulator(str(run.folder / "tb"), size_guidance=size)
    found.Reload()
    return found


# -- files of the run folder ---------------------------------------------------------------------


def test_the_run_folder_has_them_as_files():
    run = fit([JSONLogger()])
    media = run.folder / "media" / "val"
    picture = np.asarray(pillow.open(media / "inputs" / "step-00000003.png"))
    assert np.array_equal(picture, PIXELS.permute(1, 2, 0).numpy())
    with (media / "samples" / "step-00000006.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["label", "score"], ["cat", "0.5"], ["a | b", ""]]
    assert (media / "note" / "step-00000006.txt").read_text() == "epoch 1"
    histogram = json.loads((media / "weights" / "step-00000003.json").read_text())
    assert histogram["counts"] == [1, 2, 0, 1]
    assert histogram["edges"] == [0, 1, 2, 3, 4]


def test_a_name_cannot_leave_the_folder():
    class Odd(Module):
        def validation_step(self, batch):
            self.log_text("../..//a b/.c:d", "text")

    run = fit([JSONLogger()], Odd(), max_epochs=1)
    (path,) = (run.folder / "media").rglob("*.txt")
    assert path.relative_to(run.folder / "media").parts == ("_", "_", "a_b", "c_d", "step-00000003.txt")


def test_what_a_killed_run_wrote_after_its_checkpoint_is_dropped_on_resume():
    first = fit([JSONLogger()], callbacks=Checkpoint(every="1ep"), max_epochs=2)
    later = first.folder / "media" / "val" / "note" / "step-00000020.txt"
    later.write_text("of a run that was killed")
    (first.folder / "media" / "notes.txt").write_text("the user's")
    run = fit([JSONLogger()], callbacks=Checkpoint(every="1ep"), max_epochs=3, resume="latest")
    assert run.folder == first.folder
    assert not later.exists()
    assert sorted(path.name for path in later.parent.iterdir()) == [
        f"step-0000000{step}.txt" for step in (3, 6, 9)
    ]
    assert (first.folder / "media" / "notes.txt").exists()


# -- TensorBoard ---------------------------------------------------------------------------------


def test_tensorboard_shows_all_four():
    found = events(fit([TensorBoard()]))
    images = found.Images("val/inputs")
    assert [image.step for image in images] == [3, 6]
    picture = np.asarray(pillow.open(io.BytesIO(images[0].encoded_image_string)))
    assert np.array_equal(picture, PIXELS.permute(1, 2, 0).numpy())
    histogram = found.Histograms("val/weights")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (0, 4, 4, 6)
    assert list(histogram.bucket_limit) == [0, 1, 2, 3, 4]
    assert list(histogram.bucket) == [0, 1, 2, 0, 1]
    texts = {tag: found.Tensors(f"{tag}/text_summary") for tag in ("val/note", "val/samples")}
    assert [text.tensor_proto.string_val[0] for text in texts["val/note"]] == [b"epoch 0", b"epoch 1"]
    table = texts["val/samples"][0].tensor_proto.string_val[0].decode()
    assert table == "| label | score |\n| --- | --- |\n| cat | 0.5 |\n| a \\| b |  |"


def test_tensorboard_shows_the_configuration_and_a_row_of_hparams():
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    class Wide(Module):
        def __init__(self, width=8, act="gelu", shape=(1, 2), nothing=None):
            super().__init__()

        def validation_step(self, batch):
            return {"accuracy": 0.5}

    found = events(fit([TensorBoard()], Wide(width=16), max_epochs=1))
    text = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "width: 16" in text
    assert "max_epochs: 1" in text

    def read(tag):
        return HParamsPluginData.FromString(found.SummaryMetadata(tag).plugin_data.content)

    started = read("_hparams_/session_start_info").session_start_info.hparams
    assert started["width"].number_value == 16
    assert (started["act"].string_value, started["shape"].string_value) == ("gelu", "[1, 2]")
    assert started["max_epochs"].number_value == 1
    assert "nothing" not in started
    metrics = {info.name.tag for info in read("_hparams_/experiment").experiment.metric_infos}
    assert metrics == {"train/loss", "train/loss_epoch", "val/accuracy"}
    assert metrics <= set(found.Tags()["scalars"])


# -- who gets what -------------------------------------------------------------------------------


def test_each_logger_gets_what_it_shows_in_its_thread_and_the_others_say_so_once():
    keeps = Keeps()
    run = fit([keeps, CSVLogger()], max_epochs=3)
    assert [(row["step"], name) for row, name, _ in keeps.media] == [
        (step, name) for step in (3, 6, 9) for name in ("val/inputs", "val/note")
    ]
    assert keeps.media[0][0].keys() == {"step", "epoch", "time", "samples"}
    assert keeps.media[0][2].caption == "the first"
    assert keeps.threads == {"logger"}
    log = (run.folder / "log.txt").read_text()
    for line in (
        "Keeps cannot show histograms: it does not get 'val/weights' and others",
        "Keeps cannot show tables: it does not get 'val/samples' and others",
        "CSVLogger cannot show images: it does not get 'val/inputs' and others",
        "CSVLogger cannot show texts: it does not get 'val/note' and others",
    ):
        assert log.count(line) == 1
    assert log.count("cannot show") == 6


def test_a_sanity_pass_shows_nothing_and_nothing_is_made_where_nobody_looks():
    class Never:
        def __array__(self):
            raise AssertionError("it was read")

    class Watched(Module):
        def validation_step(self, batch):
            self.log_image("never", Never())

    fit(False, Watched())
    keeps = Keeps()
    fit([keeps], sanity_val_batches=1, max_epochs=1)
    assert [row["step"] for row, _, _ in keeps.media] == [3, 3]


def test_callbacks_log_them_too_and_not_where_nothing_is_published():
    class Logs(Callback):
        def on_train_epoch_end(self, trainer):
            trainer.module.log_text("note", "from a callback")

    keeps = Keeps()
    fit([keeps], callbacks=Logs(), max_epochs=1)
    assert ("train/note", Text("from a callback")) in [(name, media) for _, name, media in keeps.media]

    class Late(Callback):
        def on_teardown(self, trainer, stage):
            trainer.module.log_text("late", "x")

    with pytest.raises(PacelineError, match="nothing can be logged in on_teardown"):
        fit([keeps], callbacks=Late(), max_epochs=1)


def test_an_image_that_is_none_stops_the_run_and_names_the_argument():
    class Wrong(Module):
        def training_step(self, batch):
            self.log_image("wrong", batch[0][0, 0])
            return super().training_step(batch)

    with pytest.raises(PacelineError, match="log_image: this is no image"):
        fit([JSONLogger()], Wrong())


# -- the queue -----------------------------------------------------------------------------------


def test_media_that_wait_are_bound_by_their_bytes_and_counted(monkeypatch):
    monkeypatch.setattr(logger_queue, "MOST_BYTES", 100)
    free, begun, lines = threading.Event(), threading.Event(), []

    class Slow(Keeps):
        def write_media(self, row, name, media):
            begun.set()
            assert free.wait(60)
            super().write_media(row, name, media)

    slow = Slow()
    queue = LoggerQueue(slow, lines.append)
    queue.put_media({"step": 0}, "first", Text("x" * 500))  # alone it passes, whatever its size
    assert begun.wait(60)
    queue.put_media({"step": 1}, "second", Text("x"))
    free.set()
    assert queue.flush(60)
    queue.put_media({"step": 2}, "third", Text("x" * 60))
    assert queue.flush(60)
    queue.close(60)
    assert [name for _, name, _ in slow.media] == ["first", "third"]
    assert lines == ["warning: Slow did not get 1 text"]


def test_a_logger_that_cannot_write_an_image_keeps_its_rows():
    class Breaks(Keeps):
        def __init__(self):
            super().__init__()
            self.rows = []

        def write(self, row):
            self.rows.append(row)

        def write_media(self, row, name, media):
            raise OSError("no space")

    breaks = Breaks()
    run = fit([breaks], max_epochs=1)
    assert [row["step"] for row in breaks.rows if "train/loss_epoch" not in row] == [1, 2, 3]
    log = (run.folder / "log.txt").read_text()
    assert "Breaks could not write an image, and training continues: OSError: no space" in log
    assert "Breaks did not get 1 image and 1 text" in log
