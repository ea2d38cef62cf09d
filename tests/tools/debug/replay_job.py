"""Trains a small model, noting what it computes; tests run steps of it again.

python replay_job.py planted OPTIONS     (JSON: arguments of ``planted``)
python replay_job.py cases FOLDER CASES  (JSON: arguments of ``train`` by name), on a rank
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint, JSONLogger

SECONDS = 120


class Augmented(Dataset):
    """Each sample with its index, and noise that is drawn again each time.

    Args:
        poison: The draw with which a sample is none that the model can compute with.
    """

    def __init__(self, count: int, poison: float | None = None) -> None:
        self.values = torch.rand(count, 4, generator=torch.Generator().manual_seed(1)) + 1
        self.poison = poison

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(4)
        sample = self.values[index] + noise
        return index, -sample if noise[0].item() == self.poison else sample


class Root(nn.Module):
    """NaN of what is below 0."""

    def forward(self, x):
        return x.sqrt()


class Net(TrainModule):
    """Notes the step, the micro-batch's number, its samples and its loss in ``seen``.

    Args:
        weighs: It returns a weight with its loss.
    """

    def __init__(self, weighs: bool = False) -> None:
        super().__init__()
        self.root, self.first, self.drop = Root(), nn.Linear(4, 8), nn.Dropout(0.5)
        self.last, self.weighs = nn.Linear(8, 1), weighs
        self.seen: list[Any] = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.seen.append([self.global_step + 1, batch_idx, batch[0].tolist(), loss.item()])
        return {"loss": loss, "weight": float(batch[0].sum()) + 1.0} if self.weighs else loss

    def loss(self, batch):
        hidden = self.drop(self.first(self.root(batch[1])).relu())
        return (self.last(hidden) - batch[1].sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(Net):
    """Two optimizers, stepped by hand."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        losses = []
        for optimizer in self.optimizers():
            loss = self.loss(batch)
            losses.append(loss.item())
            self.manual_backward(loss)
            if not losses[1:]:
                self.seen.append([self.global_step + 1, batch_idx, batch[0].tolist(), losses[0]])
            optimizer.step()
            for other in self.optimizers():
                other.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.AdamW(part.parameters(), lr=0.02) for part in (self.first, self.last)]


def parts(
    count: int = 24, batch_size: int = 2, workers: int = 0, manual: bool = False, **settings: Any
) -> tuple[TrainModule, list[DataLoader], dict[str, Any]]:
    """A case's module, its loaders and the trainer's other arguments."""
    seed_everything(5)
    module = Manual() if manual else Net(weighs=settings.pop("weighs", False))
    loaders = [DataLoader(Augmented(count), batch_size, shuffle=True, num_workers=workers)]
    if settings.pop("validates", False):
        loaders.append(DataLoader(Augmented(5), 2))
    common = {"accelerator": "cpu", "progress": False, "loggers": False, "max_epochs": 2}
    return module, loaders, common | settings


def train(folder: Path, name: str, every: int = 4, callbacks: Any = (), **case: Any) -> dict[str, Any]:
    """One fit; what it came to on this rank."""
    module, loaders, settings = parts(**case)
    saves = Checkpoint(every, keep=None)
    trainer = Trainer(run_dir=folder / name, name="n", callbacks=[saves, *callbacks], **settings)
    trainer.fit(module, *loaders)
    return {"run": str(trainer.folder), "seen": module.seen, "step": trainer.global_step}


def planted(devices: int, poison: float | None) -> None:
    """Two fits; at one draw of one sample the second one's numbers become NaN."""
    seed_everything(0)
    settings: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "progress": False}
    settings |= {"strategy": "ddp" if devices > 1 else "single", "log_every": 1}
    if devices == 1:
        trainer = Trainer(name="first", max_steps=3, **settings)
        trainer.fit(Net(), DataLoader(Augmented(160), 4, shuffle=True))
    module = Net()
    own = {"callbacks": [Checkpoint(every="1ep"), JSONLogger()], "loggers": False}
    trainer = Trainer(name="second", max_epochs=2, **settings, **own)
    data = Augmented(160, poison)
    try:
        trainer.fit(module, DataLoader(data, 4 // devices, shuffle=True, num_workers=2))
    finally:
        if module.seen and "PACELINE_REPLAY" not in os.environ:  # not the process that starts the ranks
            Path(f"seen-{trainer.rank}").write_text(json.dumps(module.seen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    if sys.argv[1] == "planted":
        planted(**json.loads(sys.argv[2]))
    else:
        place = Path(sys.argv[2])
        cases = json.loads(Path(sys.argv[3]).read_text())
        found = {name: train(place, name, devices=2, **case) for name, case in cases.items()}
        (place / f"found-{os.environ['RANK']}").write_text(json.dumps(found))
