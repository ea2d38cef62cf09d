"""What user code asks of the ranks, logs and decides on them; each rank notes what it saw.

python ranks_job.py DEVICES FOLDER CASE...   (CASE: a function of this file)
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping

DEVICES = int(sys.argv[1])
FOLDER = Path(sys.argv[2])
CASE = ""
GLOBAL = 6


def note(trainer: Trainer, **values) -> None:
    """Keep what this rank saw in the case under way."""
    path = FOLDER / f"{CASE}-{trainer.rank}.json"
    before = json.loads(path.read_text()) if path.exists() else {"pid": os.getpid()}
    path.write_text(json.dumps(before | values))


def tell(name: str, line: str) -> None:
    """Append a line to a file that all ranks write."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def trainer_for(**settings) -> Trainer:
    usual = {
        "accelerator": "cpu",
        "devices": DEVICES,
        "precision": "64",
        "progress": False,
        "loggers": False,
        "checkpoint": False,
        "run_dir": FOLDER,
        "name": CASE,
    }
    return Trainer(**(usual | settings))


def batches(samples: int, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :3].argmax(1), torch.arange(samples))


def loader(samples: int, **options) -> DataLoader:
    return DataLoader(batches(samples), **({"batch_size": GLOBAL // DEVICES} | options))


class Line(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(4, 3)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


# -- verbs ---------------------------------------------------------------------------------------


class Prepared(DataModule):
    def prepare_data(self):
        time.sleep(0.3)
        tell("order-data", f"prepare data {os.environ.get('RANK', '0')}")
        self.vocabulary = 5

    def setup(self, stage):
        tell("order-data", f"setup data {os.environ.get('RANK', '0')} {stage}")

    def train_dataloader(self):
        return loader(12)


class Asking(Line):
    def prepare_data(self):
        time.sleep(0.3)
        tell("order-data", f"prepare module {self.trainer.rank}")

    def setup(self, stage):
        tell("order-data", f"setup module {self.trainer.rank} {stage}")

    def on_fit_start(self, trainer):
        self.print("this is", "printed once")
        rank, called = trainer.rank, []
        trainer.ranks.barrier()
        for turn in range(3):
            with trainer.ranks.main_process_first(per_node=turn == 2):
                time.sleep(0.2 if rank == 0 else 0)
                tell(f"order-first-{turn}", str(rank))
        if rank == 1:
            time.sleep(0.3)
        tell("order-barrier", "before")
        trainer.ranks.barrier()
        tell("order-barrier", "after")

        def on_zero():
            called.append(rank)
            return {"from": rank}

        def fail():
            raise ValueError("the disk is full")

        printed = trainer.ranks.on_rank_zero(on_zero)
        try:
            trainer.ranks.on_rank_zero(fail)
            error = None
        except Exception as raised:
            error = [type(raised).__name__, str(raised)]
        note(
            trainer,
            rank=[rank, trainer.world_size, trainer.is_global_zero],
            gathered=self.all_gather(torch.tensor([rank, 10 + rank])).tolist(),
            scalars=self.all_gather(torch.tensor(float(rank))).tolist(),
            printed=[printed, called],
            error=error,
            broadcast=[
                trainer.ranks.broadcast({"of": rank}),
                trainer.ranks.broadcast((rank, None), source=1),
            ],
            tensor=trainer.ranks.broadcast(torch.full((2,), float(rank)), source=1).tolist(),
            on_zero_alone=trainer.ranks.broadcast(torch.ones(2) if rank == 0 else None).tolist(),
        )


def verbs() -> None:
    trainer_for(max_steps=1).fit(Asking(), datamodule=Prepared())


def first_fails() -> None:
    class Failing(Line):
        def on_fit_start(self, trainer):
            note(trainer, began=True)
            with trainer.ranks.main_process_first():
                tell("entered", str(trainer.rank))
                if trainer.rank == 0:
                    raise OSError("the download broke off")
            trainer.ranks.barrier()

    trainer_for(max_steps=1).fit(Failing(), loader(12))


# -- debug ---------------------------------------------------------------------------------------


def barrier_or_gather(module, last):
    if last:
        module.trainer.ranks.barrier()  # the odd barrier
    else:
        module.all_gather(torch.ones(2))  # the usual gather


def another_shape(module, last):
    module.all_gather(torch.ones(3 if last else 2))  # the gather of two shapes


def another_dtype(module, last):
    ones = torch.ones(2, dtype=torch.int64 if last else torch.float32)
    module.all_gather(ones)  # the gather of two dtypes


def another_source(module, last):
    module.trainer.ranks.broadcast("x", source=int(last))  # the broadcast of two sources


def nothing_wrong(module, last):
    """Only the rank that tells a value has it, as is usual."""
    module.trainer.ranks.barrier()
    found = module.trainer.ranks.broadcast(torch.ones(2) if module.trainer.rank == 0 else None)
    module.all_gather(found)


MISTAKES = (barrier_or_gather, another_shape, another_dtype, nothing_wrong)


def make(mistake) -> None:
    class Mistaken(Line):
        def on_fit_start(self, trainer):
            mistake(self, trainer.rank == trainer.world_size - 1)

    trainer = trainer_for(max_steps=1, debug=True)
    try:
        trainer.fit(Mistaken(), loader(12))
        found = None
    except PacelineError as error:
        found = str(error)
    note(trainer, **{mistake.__name__: found})


def debug_source() -> None:
    make(another_source)


def debug() -> None:
    for mistake in MISTAKES:
        make(mistake)
    for name in ("with", "without"):
        module = Line()
        trainer = trainer_for(max_epochs=2, debug=name == "with", clip_grad_norm=0.1)
        trainer.fit(module, loader(19, shuffle=True))
        note(trainer, **{name: [p.tolist() for p in module.parameters()]})


# -- metrics and evaluation ----------------------------------------------------------------------


PHASES = ("in_train", "in_val", "in_test")


class Logging(Line):
    def __init__(self):
        # Here, since interpreters that a case of its own starts need none of it, and it takes seconds.
        from torchmetrics import MeanMetric, MetricCollection
        from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassRecall

        def collection():
            return MetricCollection({"f1": MulticlassF1Score(3), "recall": MulticlassRecall(3)})

        super().__init__()
        self.accuracies = nn.ModuleDict({k: MulticlassAccuracy(3) for k in PHASES})
        self.means = nn.ModuleDict({k: MeanMetric() for k in PHASES})
        self.several = nn.ModuleDict({k: collection() for k in PHASES})

    def measure(self, phase, batch, batch_idx):
        x, y, index = batch
        logits = self.net(x)
        losses = nn.functional.cross_entropy(logits, y, reduction="none")
        self.log("mean", losses.mean())
        self.log("weighted", (losses * (index + 1)).sum() / (index + 1).sum(), weight=(index + 1).sum())
        self.log("least", losses.min(), reduce="min")
        self.log("most", losses.max(), reduce="max")
        self.log("seen", len(x), reduce="sum")
        self.log("indices", index.sum(), reduce="sum")
        if self.trainer.is_global_zero:
            self.log("zero_alone", 3.0)
        if index.max() >= 4:  # late, and on a rank of its own
            self.log("late", float((index >= 4).sum()), reduce="sum")
        self.accuracies[f"in_{phase}"].update(logits, y)
        self.log("accuracy", self.accuracies[f"in_{phase}"])
        self.means[f"in_{phase}"].update(losses)
        self.log("metric_mean", self.means[f"in_{phase}"])
        self.several[f"in_{phase}"].update(logits, y)
        self.log("all", self.several[f"in_{phase}"])
        return losses.mean()

    def training_step(self, batch, batch_idx):
        return self.measure("train", batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        return self.measure("val", batch, batch_idx)

    def test_step(self, batch, batch_idx):
        return self.measure("test", batch, batch_idx)

    def predict_step(self, batch):
        return {"index": batch[2], "logits": self.net(batch[0])}


class Rows(Callback):
    """Every value the run publishes, as each rank has it."""

    def __init__(self):
        self.rows = []

    def on_step_boundary(self, trainer):
        self.rows.append({k: v for k, v in trainer.metrics.items() if not k.startswith("perf/")})


def metrics() -> None:
    for samples in (5, 7):
        rows = Rows()
        trainer = trainer_for(max_epochs=2, log_every=1, callbacks=rows)
        module = Logging()
        trainer.fit(module, loader(19, shuffle=True), loader(samples, batch_size=2))
        note(
            trainer,
            **{f"rows-{samples}": rows.rows},
            **{f"validate-{samples}": trainer.validate(module, loader(samples, batch_size=2))},
            **{f"test-{samples}": trainer.test(module, loader(samples, batch_size=3))},
        )
    note(trainer, **{"validate-1": trainer.validate(module, loader(1))})  # a sample for one rank alone
    outputs = trainer.predict(module, loader(103, batch_size=10))
    several = trainer.predict(module, [loader(21, batch_size=10), loader(33, batch_size=10)])
    note(
        trainer,
        predicted=torch.cat([o["index"] for o in outputs]).tolist(),
        logits=torch.cat([o["logits"] for o in outputs]).tolist(),
        predicted_several=torch.cat([o["index"] for o in several]).tolist(),
    )


# -- decisions -----------------------------------------------------------------------------------


class Deciding(Line):
    """Its validation gets better for three epochs, then worse."""

    def validation_step(self, batch):
        return self.net(batch[0]).mean() * 0 + abs(self.epoch - 2.0) + batch[2].double().mean() * 0.1

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/loss"}}


def decisions() -> None:
    checkpoint = Checkpoint(monitor="val/loss", keep=1)
    trainer = trainer_for(max_epochs=20, callbacks=[EarlyStopping("val/loss", patience=2), checkpoint])
    module = Deciding()
    trainer.fit(module, loader(19), loader(7, batch_size=2))
    trainer.ranks.barrier()
    ended = [trainer.global_step, trainer.stop_reason]
    of_best = trainer.validate(module, loader(7, batch_size=2), weights="best")
    note(
        trainer,
        ended=ended,
        rate=trainer.optimizers[0].param_groups[0]["lr"],
        best=[trainer.run.best.name, checkpoint.best_score],
        latest=trainer.run.latest.name,
        of_best=of_best,
    )


class Stopping(Callback):
    def on_step_end(self, trainer):
        if trainer.rank == trainer.world_size - 1 and trainer.global_step == 7:
            trainer.stop("enough")


def stop_on_one() -> None:
    trainer = trainer_for(max_steps=100_000, callbacks=Stopping())
    trainer.fit(Line(), loader(19))
    note(trainer, ended=[trainer.global_step, trainer.stop_reason])


class BusyRank(Callback):
    """The last rank's clock is far after the first one's. Steps wait: a second has 25 at most."""

    def on_fit_start(self, trainer):
        time.sleep(0.4 * trainer.rank)

    def on_step_end(self, trainer):
        time.sleep(0.04)


def max_time() -> None:
    trainer = trainer_for(
        max_time="4s", max_epochs=100_000, callbacks=[BusyRank(), Checkpoint(every="1.6s", keep=None)]
    )
    trainer.fit(Line(), loader(19))
    ended = [trainer.global_step, trainer.stop_reason]
    trainer.ranks.barrier()
    saved = [path.name for path in sorted((trainer.folder / "checkpoints").glob("step-*"))]
    trainer.fit(Line(), loader(19))
    note(trainer, ended=ended, saved=saved, again=[trainer.global_step, trainer.stop_reason])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for CASE in sys.argv[3:]:
        globals()[CASE]()
