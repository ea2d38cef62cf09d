"""What is done to a training, and what is read of it: a row of the comparison each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from mistakes import mistakes
from program import Ended, Found, Program


def _continued(whole: Ended, broken: Ended, resumed: Ended) -> Found:
    """How a resumed run continues one that was broken off, beside one that was not."""
    start = len(whole.steps) - len(resumed.steps)
    return {
        "code": resumed.code,
        "steps before": broken.updates,
        "resumed at": start,
        "lost": broken.updates - start,
        "same samples": resumed.steps == whole.steps[start:],
    }


def resume(program: Program) -> Found:
    """Killed in step 18 of 24, in the second epoch, with a checkpoint every 5 steps; resumed."""
    whole = program("--dropout 0.1", "whole")
    broken = program("--dropout 0.1 --fault kill:18 --pause 0.1", "broken")
    resumed = program("--dropout 0.1 --resume", "broken")
    return _continued(whole, broken, resumed) | {"difference": program.difference("whole", "broken")}


def evaluation(program: Program) -> Found:
    """7 samples, in batches of 2, on two ranks; beside the same on one."""
    one, two = program("--evaluate", "one"), program("--evaluate --devices 2", "two", ranks=2)
    values = [next((r for r in run.records if "accuracy" in r), {}) for run in (one, two)]
    keys = ("accuracy", "loss")
    return {
        "computed": sum(len(r.get("evaluated", ())) for r in two.records),
        "exact": {key: values[0].get(key) for key in keys},
        "found": {key: values[1].get(key) for key in keys},
    }


def sigterm(program: Program) -> Found:
    """SIGTERM in step 14 of 48, a checkpoint every 10 steps: to a process, to torchrun with two ranks."""
    found = {}
    for ranks in (1, 2):
        devices = f"--devices {ranks} --epochs 4 --save 10"
        broken = program(
            f"{devices} --pause 0.3", f"on-{ranks}", ranks, lambda _, so_far: len(so_far.steps) >= 14
        )
        resumed = program(f"{devices} --resume", f"on-{ranks}", ranks)
        start = 48 - len(resumed.steps)
        found[f"{ranks} ranks"] = {
            "code": broken.code,
            "seconds": broken.seconds,
            "steps before": broken.updates,
            "resumed at": start,
            "lost": broken.updates - start,
        }
    return found


def nan(program: Program) -> Found:
    """The loss of rank 1 of 2 is NaN in step 7 of 24, with a checkpoint every 5 steps."""
    run = program("--devices 2 --fault nan:7:1 --guard", "run", ranks=2)
    weights = program.weights("run")
    return {
        "code": run.code,
        "updates": run.updates,
        "NaN at the end": None if weights is None else any(bool(w.isnan().any()) for w in weights.values()),
        "said": run.said,
    }


def same(program: Program) -> Found:
    """Steps of 8 samples on one rank and on two: of 96, and of 100, where the last step has 4."""
    found = {}
    for samples in (96, 100):
        one = program(f"--samples {samples} --devices 1", f"{samples}-1")
        two = program(f"--samples {samples} --devices 2", f"{samples}-2", ranks=2)
        equal = [a == b for a, b in zip(one.steps, two.steps, strict=False)]
        found[f"{samples} samples"] = {
            "steps": [len(one.steps), len(two.steps)],
            "steps of the same samples": sum(equal),
            "samples": [sum(map(len, one.steps)), sum(map(len, two.steps))],
            "difference": program.difference(f"{samples}-1", f"{samples}-2"),
        }
    return found


def checkpoint(program: Program) -> Found:
    """Begun under DDP on two ranks and killed, continued under FSDP2 on two, then on one device."""
    whole = program("--devices 1", "whole")
    found: Found = {}
    for name, arguments, ranks in (
        ("DDP", "--devices 2 --fault kill:8 --pause 0.3", 2),
        ("FSDP", "--devices 2 --strategy fsdp --resume --fault kill:8 --pause 0.3", 2),
        ("one device", "--devices 1 --resume", 1),
    ):
        run = program(arguments, "run", ranks)
        first = next((k for k, step in enumerate(whole.steps) if run.steps and step == run.steps[0]), None)
        sharded = any(one.get("sharded") for one in run.records)
        found[name] = {"code": run.code, "steps": len(run.steps), "first step": first, "sharded": sharded}
        found[name]["said"] = run.said
        if not run.steps:
            break
    return found | {"difference": program.difference("whole", "run")}


def sigkill(program: Program) -> Found:
    """SIGKILL while the checkpoint of step 10 (130 MB) is written, half and almost whole; resumed."""
    size = "--epochs 1 --width 500000"
    whole = program(size, "whole")
    found = {}
    for part in (0.5, 0.95):
        name = f"at-{part}"
        broken = program(f"{size} --pause 0.5", name, 1, _writing(part), signal.SIGKILL)
        resumed = program(f"{size} --resume", name)
        one = _continued(whole, broken, resumed)
        one["difference"], one["said"] = program.difference("whole", name), resumed.said
        found[f"{part:.0%}"] = one
    return found


def _writing(part: float) -> Callable[[Path, Ended], bool]:
    """True once so large a part of the checkpoint after step 10 is in its files."""
    before: dict[Path, int] = {}

    def files(folder: Path) -> dict[Path, int]:
        paths = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
        return {path: path.stat().st_mtime_ns for path in paths if path.exists()}

    def reached(folder: Path, so_far: Ended) -> bool:
        if so_far.updates in (7, 8, 9) and not before:
            before.update(files(folder))
        if so_far.updates < 10:
            return False
        new = [path for path, time in files(folder).items() if before.get(path) != time]
        return sum(path.stat().st_size for path in new if path.exists()) > part * 126e6

    return reached


def world(program: Program) -> Found:
    """``devices=2`` under torchrun with four processes; and no number at all under torchrun with two."""
    found = {}
    for name, arguments, ranks in (("2 of 4", "--devices 2", 4), ("none of 2", "", 2)):
        folder = name.replace(" ", "-")
        run = program(f"{arguments} --epochs 1", folder, ranks)
        by_rank = {one["rank"]: one["batch"] for one in reversed(run.records) if "batch" in one}
        found[name] = {
            "code": run.code,
            "trained": program.weights(folder) is not None,
            "samples of a step": sum(map(len, by_rank.values())),
            "of which different": len({index for batch in by_rank.values() for index in batch}),
            "said": run.said,
        }
    return found


ROWS: dict[str, Callable[[Program], Found]] = {
    row.__name__: row
    for row in (resume, evaluation, sigterm, sigkill, nan, world, same, checkpoint, mistakes)
}
