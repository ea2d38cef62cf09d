"""Collectives and comparisons of small values, on each rank."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.strategies.launch import process_group
from paceline.strategies.ranks import recursive_doubling
from paceline.strategies.ranks.comparison import same_everywhere, same_in_tensor_groups
from paceline.strategies.ranks.recursive_doubling import MOST_BYTES
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.data.stream_steps import Cursor, OwnSteps


def on_rank(folder: Path) -> dict[str, Any]:
    strategy = Trainer(strategy="ddp", accelerator="cpu", run_dir=None).strategy
    together, rank, ranks = strategy.collectives, strategy.environment.rank, strategy.environment.world_size
    found: dict[str, Any] = {}
    for op in ("sum", "max", "min"):
        found[op] = {}
        for dtype in (torch.int64, torch.float64, torch.float32):
            values = torch.tensor([rank, -rank, 1], dtype=dtype)
            found[op][str(dtype).removeprefix("torch.")] = together.all_reduce(values, op).tolist()
    tenths = together.all_reduce(torch.tensor([(rank + 1) / 10], dtype=torch.float64))
    found["tenths"] = tenths.item().hex()
    given = torch.tensor([float(rank), 1.5])
    together.all_reduce(given)
    found["given"] = given.tolist()

    first = together.all_reduce_async(torch.tensor([1]))
    second = together.all_reduce_async(torch.tensor([10]))
    found["crossed"] = [0, second().item(), first().item()]
    found["crossed"][0] = first().item()  # what was read once can be read again

    found["in another order"] = _in_another_order(together, rank)
    grid = torch.arange(6.0).view(2, 3) * (rank + 1)
    found["transposed"] = together.all_reduce(grid.t()).tolist()
    zero = torch.tensor([0.0 if rank % 2 else -0.0])
    found["zeros"] = [together.all_reduce(zero, op).item().hex() for op in ("max", "min")]
    found["product"] = together.all_reduce(torch.tensor([2.0]), "product").item()
    with torch.device("meta"):  # as an accelerator would be
        found["elsewhere"] = [together.all_gather([rank]), same_everywhere(together, "order")]

    found["objects"] = together.all_gather([rank, "x" * 1000 * rank])
    large = together.all_reduce(torch.ones(MOST_BYTES // 8 + 1, dtype=torch.float64))
    found["large"] = [large[0].item(), int((large == ranks).sum())]

    found["same"] = [
        same_everywhere(together, "order"),
        same_everywhere(together, {"a": [1, 2.5, None]}),
        same_everywhere(together, rank == ranks - 1),
        same_everywhere(together, [0, "x" * rank]),
    ]
    found["sockets"] = _sockets()
    together.tensor_parallel_size = ranks  # all ranks are one group
    found["groups alike"] = same_in_tensor_groups(together, [3, 48])
    found["groups apart"] = [same_in_tensor_groups(together, [3, 48 + (rank == r)]) for r in range(ranks)]
    return found


def with_many_ranks(folder: Path) -> dict[str, Any]:
    """The same where ranks are connected when they first need it."""
    process_group._MANY_RANKS = 2
    return on_rank(folder)


def _in_another_order(together: Any, rank: int) -> list[float]:
    """Rank 1 reads the second of two reductions first, and a third not at all before it starts another."""
    first, second = (together.all_reduce_async(torch.tensor([value])) for value in (1.0, 10.0))
    results = [second().item(), first().item()] if rank == 1 else [first().item(), second().item()][::-1]
    of_one_reader = together.all_reduce_async(torch.tensor([100.0]))
    if rank == 1:
        return [*results, together.all_reduce(torch.tensor([1000.0])).item()]
    of_one_reader()
    return [*results, together.all_reduce(torch.tensor([1000.0])).item()]


def unequal_batches(folder: Path) -> dict[str, Any]:
    """Two ranks that split layers read 8 samples as two batches and as one: the error of each."""
    strategy = Trainer(strategy="ddp", accelerator="cpu", run_dir=None).strategy
    strategy.collectives.tensor_parallel_size = 2
    sizes = [4, 4] if strategy.environment.rank == 0 else [8]
    settings = FeedSettings(ranks=strategy.collectives)
    cursor = Cursor(iter(torch.zeros(size, 1) for size in sizes), None, lambda _: None, 0, 0)
    try:
        OwnSteps(cursor, settings, lambda batch, _: batch, 2).gather()
    except PacelineError as error:
        return {"error": str(error)}
    return {"error": ""}


def _sockets() -> int:
    files = Path("/proc/self/fd").iterdir()
    return sum("socket" in os.readlink(file) for file in files if file.is_symlink())


def train_and_resume(folder: Path, connected_at_first_use: bool) -> dict[str, Any]:
    """The loss and the weights after a run that was saved, and resumed by another trainer."""
    if connected_at_first_use:
        process_group._MANY_RANKS = 2
    usual: dict[str, Any] = {"strategy": "fsdp", "accelerator": "cpu", "progress": False, "loggers": False}
    data = DataLoader(TensorDataset(torch.arange(96.0).view(24, 4) / 96), 2)
    for steps in (3, 6):
        trainer = Trainer(max_steps=steps, run_dir=folder, name="run", seed=1, **usual)
        module = Net()
        trainer.fit(module, data, resume="auto")
    weights = trainer.strategy.weights.full_tensors(module)
    return {"weights": {n: w.tolist() for n, w in weights.items()}, "steps": trainer.global_step}


def collectives_of_steps(folder: Path, stream: str) -> dict[str, Any]:
    """How often a rank gathers and reduces on the host in steps 4 to 11, each of which logs a row.

    Args:
        stream: What the ranks read: "own" parts of a stream, the "same" one, or "": a map-style dataset.
    """
    counted: Counter[str] = Counter()
    for place, name in (
        (recursive_doubling, "all_gather"),
        (recursive_doubling, "all_reduce"),
        (torch.distributed, "all_gather"),
        (torch.distributed, "all_gather_object"),
        (torch.distributed, "gather_object"),
    ):
        setattr(place, name, _counting(getattr(place, name), counted, name))
    found: list[Counter[str]] = []

    class Window(Callback):
        def on_step_end(self, trainer: Any) -> None:
            if trainer.global_step in (3, 11):
                found.append(counted.copy())

    usual: dict[str, Any] = {"strategy": "ddp", "accelerator": "cpu", "progress": False, "run_dir": None}
    trainer = Trainer(max_steps=12, log_every=1, callbacks=[Window()], **usual)
    data: Any = Numbers(trainer.rank if stream == "own" else 0)
    if not stream:
        data = TensorDataset(torch.randn(256, 4))
    trainer.fit(Net(), DataLoader(data, 2))
    return dict(found[1] - found[0])


def _counting(usual: Callable[..., Any], counted: Counter[str], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        counted[name] += 1
        return usual(*arguments, **more)

    return call


class Numbers(IterableDataset[Any]):
    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((4,), float(self.first + n)),) for n in range(256))


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)
