"""Weights & Biases, MLflow and Trackio have what metrics.jsonl has; what they keep is read back."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import trackers
from helpers.loggers import NO_DEFAULTS
from helpers.trackers import ALL, EACH, same
from PIL import Image as pillow
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.metrics import logger

HERE = Path(__file__).parent
LARGEST = sys.float_info.max
PIXELS = np.arange(8 * 9 * 4, dtype=np.uint8).reshape(8, 9, 4)


class Net(TrainModule):
    """Logs values that are not finite and a name that MLflow does not take, or media, or fails."""

    def __init__(self, odd=False, media=False, breaks_at=None, text=""):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1)
        self.odd, self.media, self.breaks_at = odd, media, breaks_at

    def training_step(self, batch):
        if self.global_step == self.breaks_at:
            raise RuntimeError("broken")
        if self.odd:
            self.log_dict({"nothing": math.nan, "endless": math.inf, "below": -math.inf, "third": 1 / 3})
            self.log("recall@5 (top)", 0.5)
        if self.media and self.global_step == 1:
            self.log_image("picture", PIXELS, caption="a gradient")
            self.log_histogram("weights", [1.0, 2.0, 2.0, 5.0], bins=2)
            self.log_table("cells", ["a", "b", "a"], [(1, "x", 0.5), (2, None, True)])
            self.log_text("text", "# one <b>\ntwo")
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def data(samples=12):
    x = torch.linspace(-1, 1, 2 * samples).reshape(samples, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def fit(
    kind, *callbacks, module=None, resume=None, name="run", loggers=None, makes_database=False, **settings
):
    usual = {"max_epochs": 2, "log_every": 1, "progress": False, "checkpoint": False, "accelerator": "cpu"}
    if kind == "mlflow" and not makes_database:
        trackers.make_database(Path("runs" if settings.get("run_dir", True) else ".", "mlflow.db"))
    loggers = loggers or [trackers.make(kind), "-tensorboard", "-curves"]
    trainer = Trainer(loggers=loggers, callbacks=callbacks, name=f"{name}-{kind}", **usual | settings)
    return trainer.fit(module or Net(), data(), data(), resume=resume)


@pytest.fixture(autouse=True, scope="module")
def _time_to_write():
    """MLflow takes longer than its ten seconds to make a database where the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "SECONDS", 120.0)
        yield


# -- what arrives --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """By tracker: the logger and the folder of one run of odd values, and what is kept of it."""
    found = {}

    def of(kind):
        if kind not in found:
            logger, module = trackers.make(kind), Net(odd=True, text="x" * 70_000)
            options = {"name": "values", "run_dir": tmp_path_factory.mktemp(kind), "makes_database": True}
            folder = fit(kind, module=module, loggers=[logger, "-tensorboard", "-curves"], **options).folder
            found[kind] = logger, folder, trackers.read(kind, folder)
        return found[kind]

    return of


@pytest.mark.parametrize("kind", EACH)
def test_every_value_of_every_row_arrives(kind, whole):
    _, folder, kept = whole(kind)
    wanted = trackers.expected(folder, kind)
    if kind == "mlflow":
        wanted = {name.replace("@5 (top)", "_5 _top_"): points for name, points in wanted.items()}
    assert set(kept.points) == set(wanted)
    assert {"train/loss", "val/loss", "train/nothing", "lr/SGD"} < set(wanted)
    for name, points in wanted.items():
        if kind == "mlflow":  # which has no infinities, and one point of a value at a step
            points = [(step, min(max(value, -LARGEST), LARGEST)) for step, value in points]
            if name.startswith("position/"):
                points = [*{step: (step, value) for step, value in reversed(points)}.values()]
        assert same(kept.points[name], points), name


@pytest.mark.parametrize("kind", EACH)
def test_the_run_has_its_name_and_configuration(kind, whole):
    _, folder, kept = whole(kind)
    assert kept.name == f"values-{kind}/{folder.name}"
    if kind == "mlflow":
        assert (kept.config["trainer.max_epochs"], kept.config["name"]) == ("2", "values-mlflow")
    else:
        assert (kept.config["trainer"]["max_epochs"], kept.config["name"]) == (2, f"values-{kind}")


@pytest.mark.parametrize("kind", EACH)
def test_long_values_and_odd_names_are_kept(kind, whole):
    kept = whole(kind)[2]
    name = "train/recall_5 _top_" if kind == "mlflow" else "train/recall@5 (top)"
    assert [value for _, value in kept.points[name]] == [0.5] * 6
    if kind == "mlflow":
        assert kept.config["module.hparams.text"] == "x" * 6000


@trackers.skip_without("wandb")
def test_a_file_that_wandb_is_writing_is_read_up_to_its_last_whole_record(whole, tmp_path):
    """It has more than two blocks of 32 kB."""
    (path,) = whole("wandb")[1].glob("wandb/*run-*/run-*.wandb")
    written, records = path.read_bytes(), trackers.wandb_records(path)
    cut = tmp_path / "cut.wandb"
    for size in range(7, len(written), 997):
        cut.write_bytes(written[:size])
        read = trackers.wandb_records(cut)
        assert read == records[: len(read)]


# -- media ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    kept = {}

    def of(kind):
        if kind not in kept:
            runs = tmp_path_factory.mktemp(kind)
            if kind == "mlflow":
                trackers.make_database(runs / "mlflow.db")
            run = fit(kind, module=Net(media=True), name="media", run_dir=runs)
            kept[kind] = trackers.read(kind, run.folder).media
        return kept[kind]

    return of


@pytest.mark.parametrize("kind", EACH)
def test_the_pixels_of_an_image_arrive(kind, shown):
    if kind == "mlflow":
        path = next(path for name, path in shown(kind).items() if name.endswith(".png"))
        assert "train~picture" in path.name
        assert "step" in path.name
    else:
        found = shown(kind)["train/picture"]
        path = found["path"]
        assert (found["caption"], found["step"]) == ("a gradient", 1)
    assert np.array_equal(np.asarray(pillow.open(path)), PIXELS)


@pytest.mark.parametrize("kind", EACH)
def test_the_cells_of_a_table_arrive(kind, shown):
    if kind == "wandb":
        table = json.loads(shown(kind)["train/cells"]["path"].read_text())
        assert table["columns"] == ["a", "b", "a"]
        assert table["data"] == [[1, "x", 0.5], [2, None, True]]
    elif kind == "mlflow":
        table = json.loads(shown(kind)["tables/train/cells/step-00000001.json"].read_text())
        assert table["columns"] == ["a", "b", "a (2)"]
        assert table["data"] == [[1, "x", 0.5], [2, None, True]]
    else:
        rows = shown(kind)["train/cells"]["_value"]
        assert rows == [{"a": 1, "b": "x", "a (2)": 0.5}, {"a": 2, "b": None, "a (2)": True}]


@pytest.mark.parametrize("kind", EACH)
def test_a_text_arrives(kind, shown):
    if kind == "wandb":
        text = shown(kind)["train/text"]["path"].read_text()
        assert "# one &lt;b&gt;\ntwo" in text
    elif kind == "mlflow":
        assert shown(kind)["texts/train/text/step-00000001.md"].read_text() == "# one <b>\ntwo"
    else:
        assert shown(kind)["train/text"]["_value"] == "# one <b>\ntwo"


@pytest.mark.parametrize("kind", EACH)
def test_a_histogram_arrives(kind, shown):
    if kind == "mlflow":
        assert not [name for name in shown(kind) if "weights" in name]
        return
    found = shown(kind)["train/weights"]
    assert found["values"] == [3, 1]
    assert found["bins"] == [1.0, 3.0, 5.0]


# -- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EACH)
def test_a_run_that_resumes_continues_under_its_id(kind):
    first = fit(kind, Checkpoint(every=2), name="resumed", max_steps=4, max_epochs=4)
    before = trackers.read(kind, first.folder)
    second = fit(kind, Checkpoint(every=2), name="resumed", max_epochs=4, resume="latest")
    assert second.folder == first.folder
    kept = trackers.read(kind, first.folder)
    assert kept.id == before.id
    assert [step for step, _ in kept.points["train/loss"]] == list(range(1, 13))
    assert same(kept.points["train/loss"], trackers.expected(first.folder, kind)["train/loss"])


@pytest.mark.parametrize("kind", EACH)
def test_each_fit_is_a_new_run(kind, whole):
    logger, folder, first = whole(kind)
    runs = {"name": "values", "run_dir": folder.parent.parent}
    again = fit(kind, loggers=[logger, "-tensorboard", "-curves"], **runs)
    second = trackers.read(kind, again.folder)
    assert first.id != second.id
    assert len(first.points["train/loss"]) == len(second.points["train/loss"]) == 6


@pytest.mark.parametrize("kind", EACH)
def test_without_a_folder_there_is_a_run_all_the_same(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    logger = trackers.make(kind, project="bare") if kind != "mlflow" else trackers.make(kind)
    fit(kind, loggers=[logger, *NO_DEFAULTS], run_dir=None)
    assert logger.place


@pytest.mark.parametrize("kind", EACH)
def test_an_error_fails_the_run_and_a_new_fit_does_not(kind):
    with pytest.raises(RuntimeError, match="broken"):
        fit(kind, module=Net(breaks_at=3), name="fails")
    kept = trackers.read(kind, Path(f"runs/fails-{kind}/1").absolute())
    assert len(kept.points["train/loss"]) == 3
    assert kept.ended == {"wandb": [1], "mlflow": ["FAILED"], "trackio": []}[kind]
    kept = trackers.read(kind, fit(kind, name="fails").folder)
    assert kept.ended == {"wandb": [0], "mlflow": ["FINISHED"], "trackio": []}[kind]


@ALL
def test_nothing_global_is_changed(capfd):
    def state():
        watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
        return [sys.stdout, sys.stderr, sys.excepthook, sys.exit, *map(signal.getsignal, watched)]

    trackers.make_database(Path("runs", "mlflow.db"))
    before, threads = state(), set(threading.enumerate())
    run = fit(
        "all", loggers=[*map(trackers.make, trackers.KINDS), "-tensorboard", "-curves"], name="global"
    )
    assert state() == before
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    assert not {name for name in left if "wandb" not in name.lower()}, left
    printed = capfd.readouterr()
    lines = [line for line in printed.out.splitlines() if not line.startswith("* Run finished.")]
    log = (run.folder / "log.txt").read_text().splitlines()
    assert lines == [line.partition(" ")[2] for line in log]  # without the time of day
    assert printed.err == ""


@trackers.skip_without("mlflow")
def test_media_are_beside_the_database_that_is_given(tmp_path):
    trackers.make_database(tmp_path / "there" / "mine.db")
    logger = trackers.make("mlflow", tracking_uri=f"sqlite:///{tmp_path}/there/mine.db")
    run = fit("mlflow", module=Net(media=True), loggers=[logger, "-tensorboard", "-curves"], name="given")
    run_id = json.loads((run.folder / "mlflow.json").read_text())["run_id"]
    assert list((tmp_path / "there" / "mlartifacts" / run_id).rglob("*.png"))
    assert not (tmp_path / "mlruns").exists()


def test_parameters_that_mlflow_would_take_for_one_are_two_and_the_run_is_begun_once(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    from paceline.callbacks import MLflow

    class Named(Net):
        def __init__(self, names):
            super().__init__()

    trackers.make_database(tmp_path / "m.db")
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    log_batch, failures = MlflowClient.log_batch, [OSError("away")] * 3

    def fails_at_first(self, *arguments, **options):
        if options.get("params") and failures:
            raise failures.pop()
        return log_batch(self, *arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", fails_at_first)
    trainer = Trainer(
        max_epochs=3,
        log_every=1,
        loggers=[MLflow("e", uri), *NO_DEFAULTS],
        progress=False,
        run_dir=tmp_path,
        name="r",
    )
    trainer.fit(Named({"a@b": 1, "a_b": 2}), data())
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["module.hparams.names.a_b"] == "1"
    assert run.data.params["module.hparams.names.a_b _2_"] == "2"
    assert mlflow.active_run() is None
