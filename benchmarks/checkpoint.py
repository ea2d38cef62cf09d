"""What checkpoints cost: time a run stands still, time to write, to verify and to load, and memory.

    python benchmarks/checkpoint.py [--gigabytes 1.0] [--rounds 7] [--json FILE]

One run trains a stack of linear layers under AdamW whose weights and moments come to so many gigabytes.
At its step boundaries, in turn:

"bare"        safetensors writes the same tensors, model and moments in a file each; both are synced
"waited"      a checkpoint that training waits for (``Checkpoint(background=False)``)
"background"  one that a thread writes; the stall is the time until training goes on, and what the next
              update waits for its copy

Then the newest is loaded into the run again and again, verified and not, from the page cache and from the
disk. Medians; the first round is left out, where memory and files are new, and told apart as "first".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.trainer import checkpoint_files as files
from paceline.trainer import snapshot
from paceline.trainer.checkpoint_writer import CheckpointWriter

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


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Measures(Callback):
    """Does one thing at each boundary, and notes how long it took."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, list[int]] = {}
        self.waited = 0.0
        self.state_bytes = 0
        self.steps_beside: list[float] = []

    def note(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def on_fit_start(self, trainer: Trainer) -> None:
        finish, measures = CheckpointWriter.finish_copy, self

        def timed(writer: CheckpointWriter) -> None:
            start = time.perf_counter()
            finish(writer)
            measures.waited += time.perf_counter() - start

        trainer.writer.finish_copy = timed.__get__(trainer.writer)  # type: ignore[method-assign]

    def on_step_boundary(self, trainer: Trainer) -> None:
        turn, number = (
            ("plain", "bare", "waited", "background", "behind")[trainer.global_step % 5],
            trainer.global_step // 5,
        )
        peak = status("VmHWM")
        if turn == "plain":
            self.peaks.setdefault("behind" if number else "none", []).append(peak)
            forget_peak()
        elif turn == "bare":
            self.peaks.setdefault("plain", []).append(peak)
            self.bare(trainer)
        elif turn == "waited":
            self.save(trainer, number, background=False)
            forget_peak()
        elif turn == "background":
            self.begun = time.perf_counter()
            self.save(trainer, number, background=True)
            self.waited = 0.0
        elif number or self.seconds:
            self.note("background", self.stall + self.waited)
            trainer.writer.wait()
            self.note("background, to its end", time.perf_counter() - self.begun)
            self.peaks.setdefault("background", []).append(status("VmHWM"))
            forget_peak()
            self.remove(number)

    def bare(self, trainer: Trainer) -> None:
        module, optimizer = trainer.module, trainer.optimization.optimizers[0]
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
        target = self.folder / f"{'background' if background else 'waited'}-{number}"
        start = time.perf_counter()
        save = trainer.start_checkpoint(target, weights_only=False, background=background)
        self.stall = time.perf_counter() - start
        if save.error is not None:
            raise save.error
        if not background:
            self.note("waited", self.stall)
            shutil.rmtree(target)

    def remove(self, number: int) -> None:
        if number < self.rounds:
            shutil.rmtree(self.folder / f"background-{number}")

    def on_fit_end(self, trainer: Trainer) -> None:
        """Loads the last one again and again."""
        folder = self.folder / f"background-{self.rounds}"
        for _ in range(self.rounds + 1):
            for cold in (False, True):
                kind = "from the disk" if cold else "from memory"
                drop(folder, cold)
                self.note(f"load, {kind}", timed(lambda: snapshot.restore(trainer, folder)))
                drop(folder, cold)
                self.note(f"verify and load, {kind}", timed(lambda: verify_and_load(trainer, folder)))
                drop(folder, cold)
                self.note(f"verify, {kind}", timed(lambda: files.verify(folder)))


def verify_and_load(trainer: Trainer, folder: Path) -> None:
    files.verify(folder)
    snapshot.restore(trainer, folder)


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def drop(folder: Path, cold: bool) -> None:
    """Have the files in the page cache, or not."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; else the temporary folder"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    layers = max(1, round(given.gigabytes * 1e9 / LAYER))
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        measures = Measures(Path(place), given.rounds)
        settings: dict[str, Any] = {
            "accelerator": "cpu",
            "progress": False,
            "loggers": False,
            "checkpoint": False,
        }
        trainer = Trainer(
            max_steps=5 * (given.rounds + 1) - 1, callbacks=measures, run_dir=Path(place), **settings
        )
        data = TensorDataset(torch.randn(SAMPLES * 64, WIDTH))
        trainer.fit(Stack(layers), DataLoader(data, SAMPLES))
    report(measures, given)


def report(measures: Measures, given: argparse.Namespace) -> None:
    median = {what: statistics.median(times[1:]) for what, times in measures.seconds.items()}
    peak = {what: statistics.median(values) for what, values in measures.peaks.items()}
    state = measures.state_bytes
    ratios = {
        "stall of a background save / a waited one": median["background"] / median["waited"],
        "waited save / bare safetensors": median["waited"] / median["bare"],
        "verify and load / load, from memory": median["verify and load, from memory"]
        / median["load, from memory"],
        "verify and load / load, from the disk": median["verify and load, from the disk"]
        / median["load, from the disk"],
        "memory of background saves / the state": (peak["background"] - peak["plain"]) / state,
    }
    result = {
        "gigabytes": round(state / 1e9, 3),
        "rounds": given.rounds,
        "seconds": {k: round(v, 4) for k, v in median.items()},
        "first": {k: round(v[0], 4) for k, v in measures.seconds.items()},
        "ratios": {k: round(v, 3) for k, v in ratios.items()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    print(f"{state / 1e9:.2f} GB of state, medians of {given.rounds}")
    for what, seconds in median.items():
        print(f"{what:<32}{seconds * 1e3:9.1f} ms   first {measures.seconds[what][0] * 1e3:9.1f} ms")
    for what, ratio in ratios.items():
        print(f"{what:<46}{ratio:7.3f}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
