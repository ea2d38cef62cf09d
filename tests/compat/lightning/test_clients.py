"""Loggers that give the client of a tracker: Lightning's names and steps arrive there."""

import copy
import os

import pytest
import torch

import paceline.compat.lightning as L

from .small import Net, data, trainer

pytestmark = pytest.mark.launch


class Client(Net):
    def __init__(self, lr=0.3, api_key="hf_abcdefgh"):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        self.note(batch_idx)
        return super().training_step(batch, batch_idx)

    def note(self, batch_idx):
        pass


def test_the_run_of_wandb(monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = L.pytorch.loggers.WandbLogger("mine", project="p", save_dir="kept", offline=True)
    assert logger.version is None
    logger.experiment.config.update({"given": 1})
    module = Client()
    module.note = lambda batch_idx: logger.experiment.log({"mine": batch_idx})
    run = trainer(logger=logger, log_every_n_steps=1)
    run.fit(module, data(), data())
    logger.log_table("rows", columns=["a"], data=[[1]])
    logger.log_image("images", [torch.zeros(3, 4, 4)], caption=["one"])
    logger.watch(module)
    summary, config = dict(logger.experiment.summary), dict(logger.experiment.config)
    assert (summary["mine"], summary["trainer/global_step"], summary["epoch"]) == (2, 2, 0)
    assert {"train_loss", "val_loss", "rows", "images"} <= {*summary}
    assert config == {"given": 1, "lr": 0.3, "api_key": "***"}
    assert (logger.name, logger.version, logger.save_dir) == ("p", logger.experiment.id, "kept")
    again = copy.deepcopy(logger)
    assert (again.version, again._experiment) == (logger.version, None)
    assert os.listdir("kept/wandb")
    logger.experiment.finish()
    assert wandb.run is None


def test_the_client_of_mlflow():
    mlflow = pytest.importorskip("mlflow")
    logger = L.pytorch.loggers.MLFlowLogger("tries", "mine", save_dir="kept", tags={"kind": "trial"})
    run = trainer(logger=logger, log_every_n_steps=1)
    run.fit(Client(), data(), data())
    client = logger.experiment
    assert isinstance(client, mlflow.MlflowClient)
    found = client.get_run(logger.run_id)
    assert found.data.params == {"lr": "0.3", "api_key": "***"}
    assert (found.data.tags["kind"], found.info.run_name, found.info.status) == (
        "trial",
        "mine",
        "FINISHED",
    )
    losses = client.get_metric_history(logger.run_id, "train_loss")
    assert [one.step for one in losses] == [0, 1, 2]
    assert client.get_experiment(logger.experiment_id).name == "tries"
    assert copy.deepcopy(logger).run_id == logger.run_id
    other = L.pytorch.loggers.MLFlowLogger("tries", save_dir="kept", run_id=logger.run_id)
    assert other.experiment_id == logger.experiment_id
