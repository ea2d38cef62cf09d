"""Trackers of runs that are killed, stopped, on several ranks, or whose server is away."""

import json
import signal
from pathlib import Path

from helpers import trackers
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from helpers.small_net import Net, data
from helpers.trackers import ALL, same, skip_without

from paceline import Trainer
from paceline.callbacks.loggers.series import read_rows

HERE = Path(__file__).parent


def fit(logger, **settings):
    usual = {"max_epochs": 5, "log_every": 1, "progress": False, "checkpoint": False, "accelerator": "cpu"}
    loggers = ["-tensorboard", "-curves"] if logger is None else [logger, "-tensorboard", "-curves"]
    return Trainer(loggers=loggers, **usual | settings).fit(Net(), data())


# -- kills, signals, ranks -----------------------------------------------------------------------


@ALL
def test_kills_and_signals_leave_one_run_with_each_value_once(tmp_path, monkeypatch, own_store):
    monkeypatch.delenv("WANDB_SERVICE", raising=False)

    def run(act):
        options = {"folder": str(tmp_path), "trackers": str(own_store), "act": act}
        given = {"folder": tmp_path, "check": False, "seconds": 400}
        return run_ranks(HERE / "tracker_job.py", 1, json.dumps(options), **given)

    trackers.make_database(tmp_path / "mlflow.db")
    killed = run("kill")
    assert killed.codes == [-signal.SIGKILL], killed.output
    folder = tmp_path / "job" / "1"
    ids = {kind: json.loads((folder / f"{kind}.json").read_text())["run_id"] for kind in trackers.KINDS}
    stopped = run("terminate")
    assert stopped.codes == [128 + signal.SIGTERM], stopped.output
    assert trackers.read("mlflow", folder).ended == ["KILLED"]
    load_job(HERE / "tracker_job.py").train(tmp_path)  # with workers that are forked from this process
    assert trackers.read("mlflow", folder).ended == ["FINISHED"]
    assert trackers.read("wandb", folder).ended == [255, 0]
    for kind in trackers.KINDS:
        kept, wanted = trackers.read(kind, folder), trackers.expected(folder, kind)
        assert kept.id == ids[kind]
        assert [step for step, _ in kept.points["train/loss"]] == list(range(1, 17)), kind
        for name in ("train/loss", "train/loss_epoch", "lr/SGD"):
            assert same(kept.points[name], wanted[name]), (kind, name)


@skip_without("mlflow")
def test_on_two_ranks_rank_zero_writes(tmp_path):
    trackers.make_database(tmp_path / "runs" / "mlflow.db")
    run_ranks(HERE / "tracker_ranks_job.py", 2, tmp_path, folder=tmp_path)
    folder = tmp_path / "runs" / "ranks" / "1"
    kept, wanted = trackers.read("mlflow", folder), trackers.expected(folder, "mlflow")
    assert same(kept.points["train/loss"], wanted["train/loss"])
    assert len(wanted["train/loss"]) == 4
    assert kept.ended == ["FINISHED"]

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ranks").experiment_id
    assert len(client.search_runs([experiment])) == 1


# -- servers that are away -----------------------------------------------------------------------


def losses(run):
    rows = read_rows(run.folder / "metrics.jsonl")
    return [row["train/loss"] for row in rows if "train/loss" in row]


@skip_without("wandb")
def test_wandb_whose_server_is_away_changes_nothing(monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    patient = {"init_timeout": 0.2, "login_timeout": 0.2}
    logger = trackers.make("wandb", mode="online", settings=patient)
    run = fit(logger, max_epochs=2)
    assert losses(run) == losses(fit(None, max_epochs=2))
    log = (run.folder / "log.txt").read_text()
    assert log.count("WandB could not write a row, and training continues") == 1
    assert "WandB did not get" in log


@skip_without("mlflow")
def test_mlflow_whose_server_is_away_changes_nothing(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    logger = trackers.make("mlflow", tracking_uri="http://127.0.0.1:9")
    run = fit(logger)
    assert losses(run) == losses(fit(None))
    log = (run.folder / "log.txt").read_text()
    assert log.count("MLflow could not write a row, and training continues") == 1
    assert log.count("MLflow failed 10 times in a row: it is switched off") == 1


@skip_without("trackio")
def test_trackio_whose_server_is_away_changes_nothing():
    logger = trackers.make("trackio", server_url="http://127.0.0.1:9")
    run = fit(logger)
    assert losses(run) == losses(fit(None))
    assert "Trackio could not write a row, and training continues" in (run.folder / "log.txt").read_text()


@skip_without("wandb")
def test_wandb_can_be_disabled():
    run = fit(trackers.make("wandb", mode="disabled"))
    assert "warning" not in (run.folder / "log.txt").read_text()
    assert not (run.folder / "wandb").exists()
