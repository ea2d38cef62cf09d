"""What coordination costs as ranks are added: start, order of an epoch, steps, log points, saves.

    python benchmarks/scale.py [--ranks 2 4 8 16 32 64] [--json FILE] [--markdown]
    python benchmarks/scale.py --fit FILE    the tables of a file that was measured

All ranks are forked on this machine and compute next to nothing, so that seconds would be those of a busy
machine. Counted instead, for each rank and each event: messages and bytes that it sends, seconds of CPU,
and, in a second pass, the longest chain of messages of which each waits for the one before. For that every
message is delayed by 20 ms, in a ``writev`` of our own (a C compiler is needed): how much longer an event
takes than without, over the delay, is the chain. Of starts and saves, whose chains are long, it is measured
on up to 16 ranks. Each count is fitted by a + b log2(ranks) + c ranks, of which none is below zero.

Messages are counted with those by which gloo's receivers say that they are ready: two for each value.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.faults.stop import StopController
from paceline.trainer.loops.feed_settings import FeedRequest
from paceline.trainer.metrics.store import MetricStore
from paceline.trainer.state import Clock, Limits, TrainState

DELAY = 0.02  # seconds that a message takes in the second pass
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>
int message_delay = 0;
ssize_t writev(int file, const struct iovec *parts, int count) {
    static ssize_t (*usual)(int, const struct iovec *, int);
    if (!usual) usual = dlsym(RTLD_NEXT, "writev");
    if (message_delay) usleep(message_delay);
    return usual(file, parts, count);
}
"""
NETWORK = 50e-6  # seconds that one is assumed to take between hosts, where times are extrapolated
REPEATS = 5
LARGER = (1000, 10_000)
MOST_DELAYED = 16  # ranks of which starts and saves are delayed too
EVENTS = {
    "start": "from the start of a rank's process to its first step",
    "epoch": "the order of an epoch is compared",
    "stream": "a step of a stream of which each rank reads its part",
    "shared stream": "a step of a stream that all ranks read",
    "agreement": "the word about stopping, twice a second",
    "log point": "four logged values are reduced",
    "save ddp": "a checkpoint under ddp",
    "save fsdp": "a checkpoint under fsdp",
}
Counts = dict[str, float]


def delay_messages(delayed: bool) -> None:
    if library := os.environ.get("LD_PRELOAD"):
        delay = ctypes.c_int.in_dll(ctypes.CDLL(library), "message_delay")
        delay.value = int(DELAY * 1e6) if delayed else 0


class Numbers(IterableDataset):
    """A stream: the same on all ranks, or of each its own."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Any:
        return (torch.tensor([float(n)]) for n in itertools.count(self.first))


class Net(TrainModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(16)))

    def training_step(self, batch: Any) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Meter:
    """Counts of this process since it was made."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> Counts:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "messages": int(fields["syscw"]),
            "bytes": int(fields["wchar"]),
            "cpu": used.ru_utime + used.ru_stime,
            "seconds": time.perf_counter(),
        }

    def counts(self, events: int = 1) -> Counts:
        return {name: (value - self._before[name]) / events for name, value in self._now().items()}


class Measure(Callback):
    """Measures the events before the first step, where a run is complete and nothing else is under way."""

    def __init__(
        self, started: Meter, requests: list[FeedRequest], folder: Path, delayed: bool, long_events: bool
    ) -> None:
        self._started, self._requests, self._folder = started, requests, folder
        self._long_events, self._delayed, self._repeats = long_events, delayed, 1 if delayed else REPEATS
        self.found: dict[str, Counts] = {}

    def on_step_start(self, trainer: Any) -> None:
        if trainer.global_step:
            return
        strategy, name = trainer.strategy, trainer.strategy.name
        started = self._started.counts()
        delay_messages(False)
        if self._long_events:
            self.found["start"], number = started, itertools.count()
            self._measure(
                strategy, f"save {name}", lambda: trainer.save_checkpoint(self._folder / f"{next(number)}")
            )
        if name == "ddp":
            for event, act in self._events(trainer, self._requests[0].for_training(1)).items():
                self._measure(strategy, event, act)

    def _measure(self, strategy: Any, event: str, act: Callable[[], Any]) -> None:
        act()
        strategy.barrier()
        delay_messages(self._delayed)
        meter = Meter()
        for _ in range(self._repeats):
            act()
        self.found[event] = meter.counts(self._repeats)
        delay_messages(False)
        strategy.barrier()

    def _events(self, trainer: Any, settings: FeedSettings) -> dict[str, Callable[[], Any]]:
        strategy, state = trainer.strategy, TrainState()
        stop = StopController(strategy, state, Limits(max_steps=1), Clock(state))
        stop.begin_stage()
        store = MetricStore("train", print, strategy)
        data = make_feed(DataLoader(TensorDataset(torch.zeros(4096, 1)), 1, shuffle=True), settings)
        own, shared = (
            make_feed(DataLoader(Numbers(first), 1), settings).steps(0)
            for first in (trainer.rank * 10**6, 0)
        )
        epochs = itertools.count()

        def log_and_reduce() -> None:
            for name, reduce in (("loss", "mean"), ("accuracy", "mean"), ("seen", "sum"), ("worst", "max")):
                store.log(name, 1.0, reduce=reduce)
            store.close_window()

        return {
            "epoch": lambda: next(iter(data.steps(next(epochs)))),
            "stream": lambda: next(own),
            "shared stream": lambda: [next(shared) for _ in range(1)],
            "agreement": stop.agree,
            "log point": log_and_reduce,
        }


def be_rank(rank: int, ranks: int, port: int, strategy: str, folder: Path, delayed: bool) -> None:
    long_events = not delayed or ranks <= MOST_DELAYED
    delay_messages(delayed and long_events)
    started = Meter()
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    requests: list[FeedRequest] = []
    make = FeedRequest.__init__

    def kept(self: FeedRequest, *arguments: Any) -> None:
        make(self, *arguments)
        requests.append(self)

    FeedRequest.__init__ = kept  # type: ignore[method-assign]
    measure = Measure(started, requests, folder, delayed, long_events)
    quiet: dict[str, Any] = {"progress": False, "loggers": False, "run_dir": None, "checkpoint": False}
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", max_steps=1, callbacks=[measure], seed=1, **quiet
    )
    trainer.fit(Net(), DataLoader(TensorDataset(torch.zeros(4 * ranks, 64)), 1))
    (folder / f"found-{rank}.json").write_text(json.dumps(measure.found))


def on_ranks(ranks: int, strategy: str, delayed: bool) -> dict[str, Counts]:
    """By event: of each count the median over the ranks, and of CPU seconds the most."""
    folder = Path(tempfile.mkdtemp())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            code = 1
            try:
                with open(folder / f"printed-{rank}", "w") as printed:
                    os.dup2(printed.fileno(), 1)
                be_rank(rank, ranks, port, strategy, folder, delayed)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"{ranks} ranks under {strategy} ended with {codes}")
    found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(ranks)]
    shutil.rmtree(folder)
    result: dict[str, Counts] = {}
    for event in found[0]:
        rows = [rank[event] for rank in found]
        result[event] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        result[event]["most cpu"] = max(row["cpu"] for row in rows)
        result[event]["most messages"] = max(row["messages"] for row in rows)
    return result


def one_pass(ranks: int, delayed: bool) -> dict[str, Counts]:
    found = on_ranks(ranks, "ddp", delayed)
    if "save ddp" in found:
        found["save fsdp"] = on_ranks(ranks, "fsdp", delayed)["save fsdp"]
    return found


@cache
def slow_messages() -> str:
    """A library whose ``writev``, by which gloo sends, waits before it writes to a socket."""
    folder = tempfile.mkdtemp()
    Path(folder, "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{folder}/slow.so", f"{folder}/slow.c"], check=True)
    return f"{folder}/slow.so"


def measured(every: list[int]) -> dict[str, dict[str, Counts]]:
    """By event and number of ranks, the counts."""
    result: dict[str, dict[str, Counts]] = {event: {} for event in EVENTS}
    for ranks in every:
        for delayed in (False, True):
            command = [sys.executable, __file__, "--pass", str(ranks), *["--delayed"] * delayed]
            environment = os.environ | ({"LD_PRELOAD": slow_messages()} if delayed else {})
            printed = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment
            ).stdout
            for event, counts in json.loads(printed.splitlines()[-1]).items():
                if delayed:
                    known = result[event][str(ranks)]
                    known["chain"] = (counts["seconds"] - known["seconds"]) / DELAY
                else:
                    result[event][str(ranks)] = counts
            print(f"{ranks} ranks, messages {'delayed' if delayed else 'counted'}", file=sys.stderr)
    return result


# -- the fit -------------------------------------------------------------------------------------


def fitted(values: dict[int, float]) -> tuple[float, float, float]:
    """a, b and c of a + b log2(ranks) + c ranks: least squares of the relative error, none below zero."""
    sizes = torch.tensor([*values], dtype=torch.float64)
    found = torch.tensor([*values.values()], dtype=torch.float64)
    columns = torch.stack([torch.ones_like(sizes), sizes.log2(), sizes], 1)
    weights = 1 / found.clamp(min=1e-9)
    best, least = (0.0, 0.0, 0.0), math.inf
    for used in itertools.product((False, True), repeat=3):
        chosen = [n for n, is_used in enumerate(used) if is_used]
        if not chosen:
            continue
        part = columns[:, chosen] * weights[:, None]
        solution = torch.linalg.lstsq(part, (found * weights)[:, None]).solution[:, 0]
        error = float((part @ solution - found * weights).square().sum())
        if bool((solution >= 0).all()) and error < least - 1e-12:
            numbers = [0.0, 0.0, 0.0]
            for n, number in zip(chosen, solution.tolist(), strict=True):
                numbers[n] = number
            best, least = (numbers[0], numbers[1], numbers[2]), error
    return best


def at(fit: tuple[float, float, float], ranks: int) -> float:
    return fit[0] + fit[1] * math.log2(ranks) + fit[2] * ranks


def shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def tables(result: dict[str, dict[str, Counts]]) -> str:
    """The counts, their fits and what follows from them, as Markdown."""
    lines = []
    for count, title, factor in (
        ("chain", "Messages that wait for each other", 1.0),
        ("chain", f"Seconds, where a message takes {NETWORK * 1e6:.0f} us", NETWORK),
        ("messages", "Messages a rank sends", 1),
        ("most messages", "Messages the busiest rank sends", 1),
        ("bytes", "kB a rank sends", 1e-3),
        ("most cpu", "ms of CPU on the busiest rank", 1e3),
    ):
        sizes = [int(ranks) for ranks in next(iter(result.values()))]
        lines += [f"\n**{title}**\n", f"| N | {' | '.join(f'{n:,}' for n in [*sizes, *LARGER])} | fit |"]
        lines += ["|---" * (len(sizes) + len(LARGER) + 2) + "|"]
        for event, rows in result.items():
            values = {int(ranks): row[count] * factor for ranks, row in rows.items() if count in row}
            fit = fitted(values)
            found = [shown(values[n]) if n in values else "" for n in sizes]
            found += [shown(at(fit, n)) for n in LARGER]
            terms = [f"{shown(c)}{what}" for c, what in zip(fit, ("", " log2 N", " N"), strict=True) if c]
            lines.append(f"| {event} | {' | '.join(found)} | {' + '.join(terms)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--pass", type=int, dest="one", help=argparse.SUPPRESS)
    parser.add_argument("--delayed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        print(json.dumps(one_pass(arguments.one, arguments.delayed)))
        return
    if arguments.fit:
        print(tables(json.loads(arguments.fit.read_text())["counts"]))
        return
    result = measured(arguments.ranks)
    print(tables(result))
    if arguments.json:
        about = {
            "delay_s": DELAY,
            "repeats": REPEATS,
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        arguments.json.write_text(json.dumps({"about": about, "counts": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
