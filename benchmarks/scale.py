"""What coordination costs as ranks are added: start, order of an epoch, steps, log points, saves.

    python benchmarks/scale.py [--ranks 2 4 8 16 32 64] [--json FILE] [--all-connected]
    python benchmarks/scale.py --fit FILE    the tables of a file that was measured

All ranks are forked on this machine and compute next to nothing, so that seconds would be those of a busy
machine. Counted instead, for each rank and each event: messages and bytes that it sends, seconds of CPU,
and the longest chain of messages of which each waits for the one before. For that every message is delayed,
in a ``writev`` of our own (a C compiler is needed), in one pass by 20 ms and in another by 60 ms: by how
much longer an event takes in the second, over the difference, is the chain. Of starts and saves, whose
chains are long, it is measured on up to 16 ranks. Messages include those by which gloo's receivers say that
they are ready.

Each count is fitted by terms of 1, log2 N, N and N^2, none below zero: by the slowest growing of these fits
that comes within 10 % of every point, else by the closest. Chains and CPU are seconds of a busy machine in
the end: there it is 25 %, and no N^2.

Ranks are connected when they first need it, as they are from 128 on; with --all-connected at the start.
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
from paceline.trainer.faults.stop_agreement import StopController
from paceline.trainer.loops.feed_settings import FeedRequest
from paceline.trainer.metrics.store import MetricStore
from paceline.trainer.state import Clock, Limits, TrainState

DELAYS = (0.02, 0.06)  # seconds that a message takes in two further passes
TERMS = ("", " log2 N", " N", " N^2")
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


def delay_messages(seconds: float) -> None:
    if library := os.environ.get("LD_PRELOAD"):
        delay = ctypes.c_int.in_dll(ctypes.CDLL(library), "message_delay")
        delay.value = int(seconds * 1e6)


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
        self, started: Meter, requests: list[FeedRequest], folder: Path, delay: float, long_events: bool
    ) -> None:
        self._started, self._requests, self._folder = started, requests, folder
        self._long_events, self._delay, self._repeats = long_events, delay, 1 if delay else REPEATS
        self.found: dict[str, Counts] = {}

    def on_step_start(self, trainer: Any) -> None:
        if trainer.global_step:
            return
        strategy, name = trainer.strategy, trainer.strategy.name
        started = self._started.counts()
        delay_messages(0)
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
        strategy.collectives.barrier()
        delay_messages(self._delay)
        meter = Meter()
        for _ in range(self._repeats):
            act()
        self.found[event] = meter.counts(self._repeats)
        delay_messages(0)
        strategy.collectives.barrier()

    def _events(self, trainer: Any, settings: FeedSettings) -> dict[str, Callable[[], Any]]:
        ranks, state = trainer.ranks, TrainState()
        stop = StopController(ranks, state, Limits(max_steps=1), Clock(state))
        stop.begin_stage()
        store = MetricStore("train", print, ranks)
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
            "shared stream": lambda: next(shared),
            "agreement": stop.agree,
            "log point": log_and_reduce,
        }


def be_rank(rank: int, ranks: int, port: int, strategy: str, folder: Path, delay: float) -> None:
    long_events = not delay or ranks <= MOST_DELAYED
    delay_messages(delay if long_events else 0)
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
    measure = Measure(started, requests, folder, delay, long_events)
    quiet: dict[str, Any] = {"progress": False, "loggers": False, "run_dir": None, "checkpoint": False}
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", max_steps=1, callbacks=[measure], seed=1, **quiet
    )
    trainer.fit(Net(), DataLoader(TensorDataset(torch.zeros(4 * ranks, 64)), 1))
    (folder / f"found-{rank}.json").write_text(json.dumps(measure.found))


def on_ranks(ranks: int, strategy: str, delay: float) -> dict[str, Counts]:
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
                be_rank(rank, ranks, port, strategy, folder, delay)
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


def one_pass(ranks: int, delay: float) -> dict[str, Counts]:
    found = on_ranks(ranks, "ddp", delay)
    if "save ddp" in found:
        found["save fsdp"] = on_ranks(ranks, "fsdp", delay)["save fsdp"]
    return found


@cache
def slow_messages() -> str:
    """A library whose ``writev``, by which gloo sends, waits before it writes to a socket."""
    folder = tempfile.mkdtemp()
    Path(folder, "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{folder}/slow.so", f"{folder}/slow.c"], check=True)
    return f"{folder}/slow.so"


def measured(every: list[int], all_connected: bool) -> dict[str, dict[str, Counts]]:
    """By event and number of ranks, the counts."""
    result: dict[str, dict[str, Counts]] = {event: {} for event in EVENTS}
    environment = os.environ | {"TORCH_GLOO_LAZY_INIT": str(int(not all_connected))}
    for ranks in every:
        passes = {}
        for delay in (0, *DELAYS):
            command = [sys.executable, __file__, "--pass", str(ranks), "--delay", str(delay)]
            preload = {"LD_PRELOAD": slow_messages()} if delay else {}
            printed = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment | preload
            ).stdout
            passes[delay] = json.loads(printed.splitlines()[-1])
            print(f"{ranks} ranks, messages delayed by {delay} s", file=sys.stderr)
        faster, slower = (passes[delay] for delay in DELAYS)
        for event, counts in passes[0].items():
            result[event][str(ranks)] = counts
            if event in faster:
                longer = slower[event]["seconds"] - faster[event]["seconds"]
                counts["chain"] = longer / (DELAYS[1] - DELAYS[0])
    return result


# -- the fit -------------------------------------------------------------------------------------


def fitted(values: dict[int, float], is_timed: bool) -> list[float]:
    """Factors of the terms: of the slowest growing that come close to every point, else of the closest."""
    sizes = torch.tensor([*values], dtype=torch.float64)
    found = torch.tensor([*values.values()], dtype=torch.float64)
    columns = terms_at(sizes) / found[:, None]
    best, least = [0.0] * len(TERMS), math.inf
    for highest in range(3 if is_timed else 4):
        lower = [c for n in range(highest + 1) for c in itertools.combinations(range(highest), n)]
        for chosen in [(*some, highest) for some in lower]:
            part = columns[:, chosen]
            factors = torch.linalg.lstsq(part, torch.ones_like(found)[:, None]).solution[:, 0]
            error = float((part @ factors - 1).abs().max())
            if bool((factors >= 0).all()) and error < least:
                known = dict(zip(chosen, factors.tolist(), strict=True))
                best, least = [known.get(term, 0.0) for term in range(len(TERMS))], error
        if least <= (0.25 if is_timed else 0.1):
            break
    return best


def terms_at(sizes: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.ones_like(sizes), sizes.log2(), sizes, sizes.square()], 1)


def at(fit: list[float], ranks: int) -> float:
    return float(terms_at(torch.tensor([ranks], dtype=torch.float64))[0] @ torch.tensor(fit).double())


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
            if count == "bytes" and event.startswith("save"):
                continue  # most of them go into files
            values = {int(ranks): row[count] * factor for ranks, row in rows.items() if count in row}
            fit = fitted(values, is_timed=count in ("chain", "most cpu"))
            found = [shown(values[n]) if n in values else "" for n in sizes]
            found += [shown(at(fit, n)) for n in LARGER]
            terms = [
                f"{shown(factor)}{what}" for factor, what in zip(fit, TERMS, strict=True) if factor > 1e-9
            ]
            lines.append(f"| {event} | {' | '.join(found)} | {' + '.join(terms)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--pass", type=int, dest="one", help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--all-connected", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        print(json.dumps(one_pass(arguments.one, arguments.delay)))
        return
    if arguments.fit:
        print(tables(json.loads(arguments.fit.read_text())["counts"]))
        return
    result = measured(arguments.ranks, arguments.all_connected)
    print(tables(result))
    if arguments.json:
        about = {
            "delays_s": DELAYS,
            "repeats": REPEATS,
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        arguments.json.write_text(json.dumps({"about": about, "counts": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
