"""As research code has it: LightningCLI with two YAML files, linked arguments, a class for each part."""

from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
    LRSchedulerCallable,
    OptimizerCallable,
    SaveConfigCallback,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BASE = """
seed_everything: 11
trainer:
  accelerator: cpu
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args:
      save_dir: logs
      name: command_line
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args:
        monitor: val_loss
        save_top_k: 2
    - class_path: LearningRateMonitor
      init_args:
        logging_interval: step
model:
  activation:
    class_path: torch.nn.ReLU
  optimizer:
    class_path: torch.optim.AdamW
    init_args:
      lr: 0.02
      weight_decay: 0.1
  lr_scheduler:
    class_path: torch.optim.lr_scheduler.StepLR
    init_args:
      step_size: 2
data:
  size: 48
"""
OVERRIDES = """
trainer:
  max_epochs: 3
  log_every_n_steps: 1
model:
  width: 12
  activation:
    class_path: torch.nn.GELU
  lr_scheduler:
    init_args:
      gamma: 0.5
data:
  batch_size: 8
"""


class Classifier(LightningModule):
    """A small network.

    Args:
        width: Of its hidden layer.
        classes: How many it tells apart.
        batch_size: Of the data, to be logged.
        activation: After the hidden layer.
        optimizer: Makes the optimizer.
        lr_scheduler: Makes its schedule.
    """

    def __init__(
        self,
        width: int = 4,
        classes: int = 2,
        batch_size: int = 1,
        activation: nn.Module | None = None,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(6, width), activation or nn.Tanh(), nn.Linear(width, classes))
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler

    def _step(self, batch: Any, name: str) -> torch.Tensor:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log(f"{name}_loss", loss, prog_bar=True, batch_size=self.hparams.batch_size)
        self.log(f"{name}_acc", (logits.argmax(1) == y).float().mean(), batch_size=self.hparams.batch_size)
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._step(batch, "val")

    def test_step(self, batch, batch_idx):
        self._step(batch, "test")

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self.lr_scheduler(optimizer)}


class Points(LightningDataModule):
    """Points of three classes.

    Args:
        size: How many.
        batch_size: Of all loaders.
    """

    def __init__(self, size: int = 16, batch_size: int = 4):
        super().__init__()
        self.size, self.batch_size = size, batch_size
        self.classes = 3

    def setup(self, stage):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(self.size, 6, generator=generator)
        self.points = TensorDataset(x, x[:, : self.classes].argmax(1))

    def train_dataloader(self):
        return DataLoader(self.points, self.batch_size)

    def val_dataloader(self):
        return DataLoader(self.points, self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.points, self.batch_size)


class SaveBeside(SaveConfigCallback):
    def save_config(self, trainer, pl_module, stage):
        Path(trainer.log_dir, "kept.yaml").write_text(self.parser.dump(self.config))


class Experiment(LightningCLI):
    calls: list[str]

    def add_arguments_to_parser(self, parser: LightningArgumentParser):
        parser.add_lightning_class_args(EarlyStopping, "stopping")
        parser.set_defaults({"stopping.monitor": "val_loss", "stopping.patience": 5})
        parser.add_argument("--note", default="none")
        parser.link_arguments("data.batch_size", "model.batch_size")
        parser.link_arguments("data.classes", "model.classes", apply_on="instantiate")

    def before_instantiate_classes(self):
        self.calls = ["before_instantiate_classes"]

    def after_instantiate_classes(self):
        self.calls.append("after_instantiate_classes")

    def before_fit(self):
        self.calls.append("before_fit")

    def after_fit(self):
        self.calls.append("after_fit")


def run(args, **more):
    defaults = {"enable_progress_bar": False, "enable_model_summary": False}
    return Experiment(
        Classifier, Points, save_config_callback=SaveBeside, trainer_defaults=defaults, args=args, **more
    )


def main(**trainer_options):
    Path("base.yaml").write_text(BASE)
    Path("overrides.yaml").write_text(OVERRIDES)
    given = [f"--trainer.{name}={value}" for name, value in trainer_options.items()]
    cli = run(["fit", "--config", "base.yaml", "--config", "overrides.yaml", "--note=first", *given])
    assert cli.calls == [
        "before_instantiate_classes",
        "after_instantiate_classes",
        "before_fit",
        "after_fit",
    ]
    assert cli.config.fit.note == "first"
    assert cli.model.net[0].out_features == 12
    assert isinstance(cli.model.net[1], nn.GELU)
    assert cli.model.net[2].out_features == 3
    assert cli.model.hparams.optimizer["init_args"]["lr"] == 0.02
    assert Path(cli.trainer.log_dir) == Path("logs/command_line/version_0")

    saved = yaml.safe_load(Path(cli.trainer.log_dir, "config.yaml").read_text())
    assert saved["seed_everything"] == 11
    assert saved["model"]["width"] == 12
    assert saved["trainer"]["max_epochs"] == 3
    assert "batch_size" not in saved["model"]  # it is linked
    assert Path(cli.trainer.log_dir, "kept.yaml").is_file()

    again = run(["fit", "--config", str(Path(cli.trainer.log_dir, "config.yaml"))])
    assert Path(again.trainer.log_dir) == Path("logs/command_line/version_1")
    for one, other in zip(cli.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)

    best = again.trainer.checkpoint_callback.best_model_path
    loaded = Classifier.load_from_checkpoint(best)
    assert isinstance(loaded.net[1], nn.GELU)
    tested = run(["test", "--config", "base.yaml", "--config", "overrides.yaml", f"--ckpt_path={best}"])
    for one, other in zip(tested.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other)

    made = run(["--config", "base.yaml", "--config", "overrides.yaml"], run=False)
    assert isinstance(made.trainer, Trainer)
    made.trainer.fit(made.model, datamodule=made.datamodule)
    return made.trainer, made.model
