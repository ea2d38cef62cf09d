"""A script that has Ray Train train on workers, and notes what happens.

python ray_job.py SETTINGS   (JSON: a list of arguments of ``fit``, one after the other in one cluster)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.trainer.checkpoint.files.locate import find_checkpoint

SAMPLES, STEP = 96, 8  # 12 steps an epoch


def note(folder: str, what: str, **values: Any) -> None:
    """A line in ``notes``, which all workers share; lines that are this short are written as a whole."""
    with Path(folder, "notes").open("a") as file:
        file.write(json.dumps({"what": what} | values) + "\n")


class Notes(Callback):
    """Notes the begin of each start, and kills a rank once."""

    def __init__(self, folder: str, kill: tuple[int, int] | None) -> None:
        self.folder, self.kill = folder, kill

    def on_fit_start(self, trainer):
        note(self.folder, "begins", step=trainer.global_step, rank=trainer.rank, world=trainer.world_size)

    def on_step_end(self, trainer):
        killed = Path(self.folder, "killed")
        if self.kill == (trainer.rank, trainer.global_step) and not killed.exists():
            killed.touch()
            # Steps are faster than the first write, which another thread makes.
            manifest = (
                trainer.folder / "checkpoints" / f"step-{self.kill[1] // 5 * 5:08d}" / "manifest.json"
            )
            deadline = time.monotonic() + 60
            while not manifest.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


class Net(TrainModule):
    """Two layers."""

    folder = ""  # no argument: trainings of one experiment have the same module

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch):
        x, numbers = batch
        note(self.folder, "reads", step=self.global_step + 1, samples=numbers.tolist())
        loss = self.layers(x).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("val/loss", self.layers(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


def _fail() -> None:
    raise PacelineError("at the end", got="a mistake", fix="another value")


def train(settings: dict[str, Any]) -> None:
    """What each worker does: train, and note the weights and losses.

    Args:
        settings: ``folder`` for the notes; ``kill``: a rank and a step; ``fails``: a rank that raises an
            error before the fit; ``ends_badly``: one that does at its end; ``is_refused``: a Trainer
            without a ``run_dir`` is; others for the Trainer.
    """
    torch.set_num_threads(1)
    options = dict(settings)
    folder, kill, fails = options.pop("folder"), options.pop("kill", None), options.pop("fails", None)
    ends_badly = options.pop("ends_badly", None)
    if options.pop("is_refused", False):
        try:
            Trainer(progress=False)
        except PacelineError as error:
            note(folder, "refused", text=str(error))
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(SAMPLES, 4, generator=generator, dtype=torch.float64)
    data = TensorDataset(x, torch.arange(SAMPLES))
    module = Net()
    module.folder = folder
    trainer = Trainer(
        name="n", progress=False, precision="64", global_batch_size=STEP, log_every=1,
        callbacks=[Notes(folder, tuple(kill) if kill else None), Checkpoint(every=5)], clip_grad_norm=0.5,
        **{"max_epochs": 2} | options,
    )  # fmt: skip
    if fails is not None and trainer.rank == fails:
        raise PacelineError("on purpose", got="a mistake", fix="another value")
    if ends_badly == trainer.rank:
        module.on_fit_end = _fail
    loaders = DataLoader(data, STEP // 2, shuffle=True), DataLoader(data, STEP)
    run = trainer.fit(module, *loaders)
    if trainer.is_global_zero:
        weights = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
        losses = list(map(float, run.metrics["train/loss"].values))
        validation = float(run.metrics["val/loss"].values[-1])
        done = {"weights": weights, "losses": losses, "val/loss": validation, "run": str(run.folder)}
        note(folder, "done", step=trainer.global_step, **done)


def fit(
    workers: int,
    name: str = "e",
    max_failures: int = 1,
    is_remote: bool = False,
    notes: str = ".",
    **settings: Any,
) -> None:
    """Train on workers of Ray.

    Args:
        name: The experiment's.
        max_failures: How often Ray starts the workers again.
        is_remote: Keep Ray's files in a file system that is not this machine's.
        notes: The folder for them, in this one.
    """
    here = str(Path.cwd())
    folder = str(Path(here, notes))
    Path(folder).mkdir(exist_ok=True)
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    storage: dict[str, Any] = {"storage_path": f"{here}/ray"}
    if is_remote:
        Path("store").mkdir()
        files = SubTreeFileSystem(f"{here}/store", LocalFileSystem())
        storage = {"storage_path": "ray", "storage_filesystem": files}
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder} | settings,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name=name, failure_config=FailureConfig(max_failures=max_failures), **storage),
    )
    result = trainer.fit()
    reports = [metrics for _, metrics in result.best_checkpoints or ()]
    checkpoint = result.checkpoint and result.checkpoint.path
    leads_to = str(checkpoint and find_checkpoint(checkpoint))
    note(
        folder, "result", metrics=result.metrics, checkpoint=checkpoint, leads_to=leads_to, reports=reports
    )


def main(settings: list[dict[str, Any]]) -> None:
    """Train with each of these settings; without workers in this process."""
    if "workers" not in settings[0]:
        train({"folder": str(Path.cwd())} | settings[0])
        return
    import ray

    workers = max(one["workers"] for one in settings)
    python = os.environ.get("WORKERS_PYTHON")
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=True,
        runtime_env={"py_executable": python} if python else None,
    )
    for one in settings:
        fit(**one)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
