"""A study of three trials, each a run on all ranks, in which a kill ends a trial in the middle.

python optuna_job.py STORAGE [TRIAL STEP]   (which trial is killed, once, and after which step)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, OptunaPruning

GIVEN = [0.02, 0.00001, 0.05]  # the second is pruned at its first report, as the worse one of two
RETRY = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


class Net(TrainModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch):
        x, y = batch
        return (self.layers(x) - y).square().mean()

    def validation_step(self, batch):
        return self.training_step(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


class Kill(Callback):
    """Kills rank 0 after a step, once the checkpoint before it is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer):
        if trainer.global_step == self.step and trainer.is_global_zero:
            written = trainer.folder / "checkpoints" / f"step-{self.step // 3 * 3:08d}" / "manifest.json"
            deadline = time.monotonic() + 60
            while not written.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def make_study(storage: str) -> optuna.Study:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    if storage == "journal":
        kept: Any = JournalStorage(JournalFileBackend("study.log"))
    else:
        kept = RDBStorage(
            "sqlite:///study.db", heartbeat_interval=1, grace_period=1, heartbeat_stale_trial_callback=RETRY
        )
    is_new = not any(Path().glob("study.*"))
    study = optuna.create_study(
        study_name="lines", storage=kept, load_if_exists=True, pruner=pruner, direction="minimize"
    )
    if not study.get_trials():
        for lr in GIVEN:
            study.enqueue_trial({"lr": lr})
    left = study.get_trials(states=[TrialState.RUNNING])
    if storage == "journal":
        for trial in left:
            study.tell(trial.number, state=TrialState.FAIL)
            RETRY(study, trial)
    elif not is_new:
        time.sleep(2)  # until the heartbeat of the killed process is too old
    return study


def main(storage: str, killed: int = -1, step: int = 0) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    ranks = Trainer(accelerator="cpu").ranks
    x = torch.linspace(-1, 1, 48)[:, None]
    data = TensorDataset(x, 3 * x + 1)

    def suggest(trial: optuna.Trial) -> tuple[float, str]:
        lr = trial.suggest_float("lr", 1e-6, 1.0, log=True)
        run = trial.user_attrs.get("run", f"trial-{trial.number}")
        trial.set_user_attr("run", run)
        return lr, run

    def objective(trial: optuna.Trial | None) -> float:
        lr, run = ranks.on_rank_zero(lambda: suggest(trial))
        pruning = OptunaPruning(trial, "val/loss")
        kill = [Kill(step)] if run == f"trial-{killed}" else []
        trainer = Trainer(
            accelerator="cpu", max_epochs=3, callbacks=[pruning, Checkpoint(every=3), *kill], log_every=1,
            global_batch_size=8, progress=False, loggers=False, record=False, name=run,
        )  # fmt: skip
        begun = Path(f"runs/{run}").exists()
        module = Net(lr)
        try:
            trainer.fit(module, DataLoader(data, 4, shuffle=True), DataLoader(data, 16), resume="auto")
        finally:
            ended = {"run": run, "resumed": begun, "step": trainer.global_step, "pruned": pruning.pruned}
            ended["weights"] = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
            with Path(f"ends-{trainer.rank}").open("a") as file:
                file.write(json.dumps(ended) + "\n")
        return trainer.metrics["val/loss"]

    if ranks.rank:
        for _ in range(ranks.broadcast(None)):
            with suppress(optuna.TrialPruned):
                objective(None)
        return
    study = make_study(storage)
    done = study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])
    study.optimize(objective, n_trials=ranks.broadcast(len(GIVEN) - len(done)))
    trials = [
        {"run": t.user_attrs.get("run"), "state": t.state.name, "value": t.value}
        | {"reports": list(t.intermediate_values.items())}
        for t in study.get_trials()
    ]
    Path("trials").write_text(json.dumps(trials))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
