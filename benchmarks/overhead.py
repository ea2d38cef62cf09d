"""Microseconds a step over a hand-written loop, on ready batches: only the loop is measured.

    python benchmarks/overhead.py [--steps 4000] [--rounds 7] [--only TABLE] [--json FILE]

"like for like" is the hand-written loop with what ours does in every step: it reads each loss, looks for
losses and gradients that are not finite, counts samples, and asks whether a log is due.
"off": no progress bar, no loggers, no checkpoint, no record of steps. "typical": a progress bar,
TensorBoard, metrics.jsonl and one value logged per step, with the record of steps and without it. "full":
that with three loggers and five callbacks. Peers that are installed run too (``peers.py``). "iterable":
nothing on, the same batches in a list, from an object with ``__iter__`` and ``__len__``, and from one whose
``__iter__`` is a generator. "checks": nothing on, with and without the callback ``Checks``, which is on by
default and looks at the first steps.
The loops run interleaved, round by round; medians are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import peers
import torch
from tiny import Logging, Plain, Stopwatch, Terminal, make_batches, make_net
from torch.nn import functional as F

from paceline import Trainer
from paceline.callbacks import (
    Checks,
    CSVLogger,
    Curves,
    DeviceMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    Progress,
    TensorBoard,
    Throughput,
    Timer,
)
from paceline.callbacks.pictures.curves import wait_for_pictures


def raw(batches: list) -> float:
    """The loop one would write."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    begun = time.perf_counter()
    for x, y in batches:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begun


def like_for_like(batches: list) -> float:
    """The loop one would write who wants what ours does in every step."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses, weights, samples, log_every = 0.0, 0, 0, 50
    begun = time.perf_counter()
    for step, (x, y) in enumerate(batches, 1):
        size = len(x)
        loss = F.cross_entropy(net(x), y)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"step {step}: the loss is {value}")
        loss.backward()
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = torch._foreach_norm(grads, math.inf)
        if not math.isfinite(torch.stack(norms).sum().item()):
            raise FloatingPointError(f"step {step}: a gradient is not finite")
        optimizer.step()
        optimizer.zero_grad()
        samples += size
        losses, weights = losses + value * size, weights + size
        if step % log_every == 0:
            losses, weights = 0.0, 0
    return time.perf_counter() - begun


class Batches:
    """What other libraries' loaders are to a trainer."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Generated(Batches):
    """Batches made one by one."""

    def __iter__(self) -> Iterator:
        yield from self.batches


def off(batches: list | Batches, checks: bool = True) -> float:
    """Ours, nothing on, but for ``Checks``."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Trainer(
            accelerator="cpu",
            progress=False,
            loggers=False,
            checkpoint=False,
            record=False,
            callbacks=[watch, Checks(skip=not checks)],
            run_dir=folder,
        )
        trainer.fit(Plain(), batches)
    return watch.seconds


def typical(batches: list, record: bool = True) -> float:
    """Ours with what is on by default, and one value."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(Terminal()):
        trainer = Trainer(
            accelerator="cpu", checkpoint=False, record=record, callbacks=[watch], run_dir=folder
        )
        names = {type(c) for c in trainer.callbacks}
        assert {Progress, TensorBoard, ModelSummary, Curves} <= names
        trainer.fit(Logging(), batches)
        wait_for_pictures()  # else they are drawn beside the next loop
    return watch.seconds


def full(batches: list) -> float:
    """Ours with three loggers and five callbacks."""
    watch = Stopwatch()
    several = [
        EarlyStopping("train/loss_epoch", patience=9),
        LearningRateMonitor(),
        Throughput(flops=False),
        Timer(),
        DeviceMonitor(),
    ]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(Terminal()):
        trainer = Trainer(
            accelerator="cpu",
            checkpoint=False,
            callbacks=[watch, *several],
            loggers=[CSVLogger(), "-curves"],
            run_dir=folder,
        )
        trainer.fit(Logging(), batches)
    return watch.seconds


def measure(loops: dict[str, Callable[[list], float]], steps: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a step of each loop, round by round."""
    batches = make_batches(steps)
    for loop in loops.values():
        loop(batches[:200])
    found: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        order = list(loops.items())
        for name, loop in order if number % 2 else reversed(order):
            gc.collect()
            found[name].append(loop(batches) / steps * 1e6)
    return found


def over_raw(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Medians, and those of the differences to the two hand-written loops within a round."""
    base = statistics.median(times["raw"])
    result = {}
    for name, values in times.items():
        over, over_like = (
            [value - own for value, own in zip(values, times[loop], strict=True)]
            for loop in ("raw", "like for like")
        )
        result[name] = {
            "us_per_step": round(statistics.median(values), 2),
            "over_raw_us": round(statistics.median(over), 2),
            "over_like_us": round(statistics.median(over_like), 2),
            "ratio": round(statistics.median(values) / base, 3),
        }
    return result


def show(title: str, result: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    print(f"{title:<14}{'us/step':>10}{'over raw':>10}{'over like':>11}{'ratio':>8}")
    for name, row in result.items():
        numbers = (
            f"{row['us_per_step']:>10}{row['over_raw_us']:>10}{row['over_like_us']:>11}{row['ratio']:>8}"
        )
        print(f"{name:<14}{numbers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="one of the tables")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    own = {"raw": raw, "like for like": like_for_like}
    tables = {
        "off": own | {"paceline": off} | peers.found(typical=False),
        "typical": own
        | {"paceline": typical, "record=False": lambda batches: typical(batches, record=False)}
        | peers.found(typical=True),
        "full": own | {"paceline": full},
        "iterable": own
        | {
            "list": off,
            "object": lambda batches: off(Batches(batches)),
            "generator": lambda batches: off(Generated(batches)),
        },
        "checks": own | {"with": off, "without": lambda batches: off(batches, checks=False)},
    }
    result = {}
    for title, loops in tables.items():
        if arguments.only not in (None, title):
            continue
        result[title] = over_raw(measure(loops, arguments.steps, arguments.rounds))
        show(title, result[title])
    if arguments.json:
        about = {
            "torch": torch.__version__,
            "peers": peers.versions(),
            "python": platform.python_version(),
            "steps": arguments.steps,
            "rounds": arguments.rounds,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
