"""What checkpoints cost: time a run stands still, time to write, to verify and to load, and memory.

    python benchmarks/checkpoint.py [--gigabytes 1.0] [--rounds 7] [--saves] [--json FILE]

One run trains a stack of linear layers under AdamW whose weights and moments take so many gigabytes.
At its step boundaries, one after the other:

"bare"        safetensors writes the same tensors, model and moments in a file each; both are synced
"waited"      a checkpoint that training waits for (``Checkpoint(background=False)``)
"background"  one that a thread writes; the stall is the time until training continues

Then new processes resume from the last one, verified (as always) and not, its files in the page cache or
not. Medians of all rounds but the first, where memory and files are new: its figures stand beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.trainer.checkpoint.files.format import read_manifest
from paceline.trainer.checkpoint.files.integrity import Verification
from paceline.trainer.checkpoint.run_state import RunState
from paceline.trainer.checkpoint.weights import stored_shapes

WIDTH, SAMPLES = 1024, 16
LAYER = 4 * (WIDTH + 1) * WIDTH * 3  # bytes of weights and two moments in fp32


class Stack(TrainModule):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


def status(field: str) -> int:
    """A number of /proc/self/status, in bytes."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


class Measures(Callback):
    """Does one thing at each boundary, and notes how long it took."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.seconds: dict[str, list[float]] = {}
        self.peak = self.peak_without = 0  # of resident memory, bytes
        self.state_bytes = 0

    def note(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def on_step_boundary(self, trainer: Trainer) -> None:
        number, turn = divmod(trainer.global_step, 5)
        if trainer.global_step == 1:
            self.peak_without = status("VmHWM")
            trainer.checkpoints.prepare()  # as Checkpoint does
        if turn in (1, 2):  # whichever comes first finds the disk in a better mood: they take turns
            os.sync()
            self.bare(trainer) if (turn == 1) == (number % 2 == 0) else self.save(trainer, number, False)
        elif turn == 3:
            os.sync()
            self.begun = time.perf_counter()
            self.save(trainer, number, background=True)
        elif turn == 4:
            self.note("background", self.stall)
            self.pending.wait()
            self.note("background, to its end", time.perf_counter() - self.begun)
            self.peak = status("VmHWM")
            if number < self.rounds:
                shutil.rmtree(self.pending.target)

    def bare(self, trainer: Trainer) -> None:
        module, optimizer = trainer.module, trainer.optimizers[0]
        names = {p: name for name, p in module.named_parameters()}
        weights = {name: p.detach() for p, name in names.items()}
        moments = {f"{names[p]}.{k}": v for p, state in optimizer.state.items() for k, v in state.items()}
        self.state_bytes = sum(t.nbytes for t in (*weights.values(), *moments.values()))
        place = self.folder / "bare"
        place.mkdir()
        start = time.perf_counter()
        for name, tensors in (("model", weights), ("optim", moments)):
            save_file(tensors, str(place / name))
            with (place / name).open("rb") as file:
                os.fsync(file.fileno())
        self.note("bare", time.perf_counter() - start)
        shutil.rmtree(place)

    def save(self, trainer: Trainer, number: int, background: bool) -> None:
        name = f"{'background' if background else 'waited'}-{number}"
        start = time.perf_counter()
        save = self.pending = trainer.checkpoints.save(name, weights_only=False, background=background)
        self.stall = time.perf_counter() - start
        if save.error is not None:
            raise save.error
        if not background:
            self.note("waited", self.stall)
            shutil.rmtree(save.target)


@contextmanager
def unverified() -> Iterator[None]:
    """No block is read for its checksum."""
    compare = Verification._compare
    Verification._compare = lambda *args: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Verification._compare = compare  # type: ignore[method-assign]


def resume(folder: Path, verified: bool) -> float:
    """Seconds in which a new process loads the checkpoint."""
    seconds = 0.0

    def timed(*given: Any) -> list[str]:
        nonlocal seconds
        start = time.perf_counter()
        inexact = restore(*given)
        seconds = time.perf_counter() - start
        return inexact

    restore, RunState.restore = RunState.restore, timed  # type: ignore[method-assign]
    layers = len(stored_shapes(folder, read_manifest(folder))) // 8
    with nullcontext() if verified else unverified(), tempfile.TemporaryDirectory() as place:
        trainer = make_trainer(Path(place), max_steps=1)
        trainer.fit(Stack(layers), make_data(), resume=folder)
    return seconds


def in_a_new_process(folder: Path, verified: bool) -> float:
    command = [sys.executable, __file__, "--resume", str(folder), *([] if verified else ["--unverified"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def drop(folder: Path, cold: bool) -> None:
    """Have the files in the page cache, or not."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass


def make_trainer(folder: Path, max_steps: int, accelerator: str = "cpu", **more: Any) -> Trainer:
    off = dict.fromkeys(("progress", "loggers", "checkpoint"), False)
    return Trainer(accelerator=accelerator, max_steps=max_steps, run_dir=folder, **off, **more)


def make_data() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(SAMPLES * 64, WIDTH, generator=torch.Generator())), SAMPLES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="else the temporary one")
    parser.add_argument("--json", type=Path, help="- for the output")
    parser.add_argument("--saves", action="store_true", help="alone, on an accelerator where there is one")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unverified", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.resume:
        print(resume(given.resume, not given.unverified))
        return
    layers = max(1, round(given.gigabytes * 1e9 / LAYER))
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        measures = Measures(Path(place), given.rounds)
        where = "auto" if given.saves else "cpu"
        trainer = make_trainer(Path(place), 5 * (given.rounds + 1) - 1, where, callbacks=measures)
        trainer.fit(Stack(layers), make_data())
        folder = measures.pending.target
        for _ in range(0 if given.saves else given.rounds + 1):
            for cold in (False, True):
                for verified in (True, False):
                    drop(folder, cold)
                    kind = "from the disk" if cold else "from memory"
                    what = f"load, {kind}" if verified else f"load unverified, {kind}"
                    measures.note(what, in_a_new_process(folder, verified))
    report(measures, given)


def report(measures: Measures, given: argparse.Namespace) -> None:
    median = {what: statistics.median(times[1:]) for what, times in measures.seconds.items()}
    first = {what: times[0] for what, times in measures.seconds.items()}
    state = measures.state_bytes
    ratios = {
        "stall of a background save / a waited one": median["background"] / median["waited"],
        "stall of the first background save / a waited one": first["background"] / median["waited"],
        "waited save / bare safetensors": median["waited"] / median["bare"],
        **{
            f"load / load unverified, {kind}": median[f"load, {kind}"] / median[f"load unverified, {kind}"]
            for kind in ("from memory", "from the disk")
            if not given.saves
        },
        "memory of background saves / the state": (measures.peak - measures.peak_without) / state,
    }
    result = {
        "gigabytes": round(state / 1e9, 3),
        "rounds": given.rounds,
        "seconds": {k: round(v, 4) for k, v in median.items()},
        "first": {k: round(v, 4) for k, v in first.items()},
        "ratios": {k: round(v, 3) for k, v in ratios.items()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    print(f"{state / 1e9:.2f} GB of state, medians of {given.rounds}")
    for what, seconds in median.items():
        print(f"{what:<32}{seconds * 1e3:9.1f} ms   first {first[what] * 1e3:9.1f} ms")
    for what, ratio in ratios.items():
        print(f"{what:<52}{ratio:7.3f}")
    if given.json == Path("-"):
        print(json.dumps(result))
    elif given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
