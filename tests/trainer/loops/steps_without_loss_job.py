"""Steps for which one of two ranks has no loss. python steps_without_loss_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from test_steps_without_loss import SkipsSome, X
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer
from paceline.strategies import DDP

FOLDER = Path(sys.argv[1])


class Weighted(SkipsSome):
    def training_step(self, batch):
        loss = super().training_step(batch)
        return None if loss is None else {"loss": loss, "weight": 3.0}


def train(module, strategy, batch_size=4, **settings):
    usual = {"progress": False, "loggers": False, "run_dir": None, "max_epochs": 2, "timeouts": "60s"}
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=2, **(usual | settings))
    trainer.fit(module, DataLoader(TensorDataset(X), batch_size))
    return trainer


def note(name, trainer, module):
    weight = trainer.strategy.weights.full_tensors(module)["net.weight"].item()
    found = {"skipped": trainer.counters.skipped_steps, "weight": weight}
    (FOLDER / f"{name}-{trainer.rank}.json").write_text(json.dumps(found))


def skip_on_one() -> None:
    """Rank 1 has no loss for a batch of the second step."""
    for name in ("ddp", "ddp_unused", "deepspeed_stage_0", "deepspeed_stage_2"):
        strategy = DDP(find_unused_parameters=False) if name == "ddp_unused" else name
        for kind, module in (("plain", SkipsSome((12,))), ("weighted", Weighted((12,)))):
            note(f"{name}-{kind}", train(module, strategy), module)
        module = SkipsSome((10,))
        note(f"{name}-accumulated", train(module, strategy, 2, accumulate=2), module)


def skip_where_it_cannot_be() -> None:
    """Both ranks skip, so that none of them waits for the other."""
    for name, skipped, settings in (
        ("fsdp", (8, 12), {}),
        ("deepspeed_stage_3", (8, 12), {}),
        ("ddp_ignore", (8, 12), {"nonfinite": "ignore"}),
        ("ddp_fp16", (8, 12), {"precision": "fp16"}),
        ("ddp_first", (0, 4), {}),
        ("ddp_batchnorm", (8, 12), {"sync_batchnorm": True}),
    ):
        strategy = "ddp" if name.startswith("ddp") else name
        error = ""
        try:
            train(SkipsSome(skipped), strategy, **settings)
        except PacelineError as found:
            error = str(found)
        rank = torch.distributed.get_rank()
        (FOLDER / f"error-{name}-{rank}.json").write_text(json.dumps({"error": error}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    skip_on_one()
    skip_where_it_cannot_be()
