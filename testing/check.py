"""Checks a strategy: the numbers of one device, and checkpoints that any strategy reads."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..common.argument_checks import ABOVE_ZERO_OR_NONE, AMOUNT, COUNT, check_arguments, one_of
from ..errors import cut, shown
from ..strategies import Strategy
from ..strategies import make_strategy as strategy_of
from ..trainer.rng import untouched
from ..trainer.run.run import Run
from . import ranks
from .trainings import COMPARED, MIDDLE, SECTIONS, WEIGHTS, Layout

PROMISES = {
    "collectives": "collectives",
    "training": "training",
    "validation": "training",
    "accumulation": "accumulation",
    "clipping": "clipping",
    "checkpoint": "checkpoint",
    "export": "export",
    "nonfinite": "nonfinite",
}
"""The section of the ranks' work that each promise is judged by."""
_EVEN_SO = ("collectives", "training", "validation")  # do not follow from the training's numbers
_TOLERANCE = {"64": 1e-10, "32": 1e-5}
_LOSS_OF = {
    "clipping": "with gradients clipped by norm, the loss of step",
    "clipping-by-value": "with gradients clipped by value, the loss of step",
    "resumed": "after resuming, the loss of step",
    "resumed-from-other": "after resuming a checkpoint of one device, the loss of step",
}
_LONGEST = 150  # characters of an error
_LINES = 25  # of what a rank has printed


def check_strategy(
    make_strategy: Callable[[], Strategy] | str,
    *,
    world_size: int = 2,
    precision: str = "64",
    tolerance: float | None = None,
    seconds: float = 300,
) -> None:
    """Check that a strategy keeps what the Trainer promises, on several processes of this machine's CPU.

    A small model is trained under it and on one device. The promises:

    - ``collectives``: ``all_reduce``, ``all_gather`` and ``broadcast`` give every rank the right values.
    - ``training``: the losses of all steps are those of one device.
    - ``validation``: each sample is counted once.
    - ``accumulation``: likewise with several micro-batches, and a last step that ranks cannot share evenly.
    - ``clipping``: likewise with gradients clipped by norm and by value.
    - ``checkpoint``: a resumed run equals an uninterrupted one bit for bit; one device reads its
      checkpoints, and it reads those of one device.
    - ``export``: the file has whole weights, those of the checkpoint.
    - ``nonfinite``: where the loss of one rank is NaN, all ranks raise the error.

    Args:
        make_strategy: Returns a new strategy, and can be imported by other processes: a class or function
            of a module; or the strategy's name.
        world_size: How many ranks to train on; 1 for a strategy of one device.
        precision: ``"64"``, or ``"32"`` for a strategy that cannot train in double precision.
        tolerance: How far values may be from those of one device; None is 1e-10, and 1e-5 in ``"32"``.
        seconds: After which all processes are ended and the check fails. No process outlives the check.

    Raises:
        AssertionError: with a sentence for each promise that is broken.
        PacelineError: for arguments that are not right.
    """
    if isinstance(make_strategy, str):
        strategy_of(make_strategy)
    check_arguments(
        "check_strategy",
        world_size=(world_size, COUNT),
        precision=(precision, one_of("64", "32")),
        tolerance=(tolerance, ABOVE_ZERO_OR_NONE),
        seconds=(seconds, AMOUNT),
    )
    with tempfile.TemporaryDirectory(prefix="paceline-check-") as place, untouched(torch.device("cpu")):
        folders = [Path(place, name) for name in ("checked", "one-device")]
        checked = Layout(folders[0], make_strategy, world_size, world_size, precision)
        one = Layout(folders[1], "single", 1, world_size, precision)
        for folder in folders:
            folder.mkdir()
        work = {section.__name__: partial(section, checked, one) for section in SECTIONS}
        ranks.prepare(checked.folder, work, [make_strategy], seconds)
        for section in COMPARED:
            section(one, checked)
        one.train("saved", saves=True)
        reports = ranks.run(checked.folder, world_size, seconds)
        broken, unchecked = _judge(checked, one, reports, tolerance or _TOLERANCE[precision])
        if broken:
            name = make_strategy if isinstance(make_strategy, str) else shown(make_strategy, 80)
            lines = [
                f"strategy {name} on {world_size} rank{'s' * (world_size > 1)} breaks what is promised:"
            ]
            lines += [f"  {promise}: {text}" for promise, text in broken.items()]
            lines += [f"  not checked after that: {', '.join(unchecked)}"] if unchecked else []
            raise AssertionError("\n".join([*lines, *_printed(checked, reports)]))


def _judge(
    checked: Layout, one: Layout, reports: list[ranks.Report], tolerance: float
) -> tuple[dict[str, str], list[str]]:
    """A sentence for each promise that is broken, and those that could not be looked at."""
    order = ["start", *(section.__name__ for section in SECTIONS), ""]
    reached = order.index(min((report.section for report in reports), key=order.index))
    broken: dict[str, str] = {}
    unchecked = []
    for promise, section in PROMISES.items():
        if "training" in broken and promise not in _EVEN_SO:
            unchecked.append(promise)
        elif order.index(section) == reached and promise == section:
            broken[promise] = _end(reports, section)
        elif order.index(section) >= reached:
            unchecked.append(promise)
        else:
            found = [text for report in reports for text in report.found[section]]
            try:
                found += _compare(promise, checked, one, tolerance)
            except Exception as error:  # of a checkpoint that cannot be read, say
                found.append(cut(f"{type(error).__name__}: {error}", _LONGEST))
            if found:
                broken[promise] = found[0]
    if not reached:
        broken["start"] = _end(reports, "start")
    return broken, unchecked


def _end(reports: list[ranks.Report], section: str) -> str:
    """How the ranks ended that did not finish this section."""
    ends = []
    for rank, report in enumerate(reports):
        if report.section == section:
            error = f"ended with {cut(report.error.splitlines()[0], _LONGEST)}" if report.error else ""
            ends.append(f"rank {rank} {error or 'did not end in time, or was killed'}")
    return "; ".join(ends)


def _compare(promise: str, checked: Layout, one: Layout, tolerance: float) -> Iterator[str]:
    """What differs from one device, or between parts of the training under the strategy."""
    if promise in ("training", "accumulation"):
        yield from _losses(checked, promise, one, promise, tolerance)
    elif promise == "clipping":
        for name in ("clipping", "clipping-by-value"):
            yield from _losses(checked, name, one, name, tolerance)
    elif promise == "validation":
        rows = [row for row in _run(checked, "training").rows if "val/samples" in row]
        target = checked.validation_data().tensors[1].mean().item()
        for name, right in (("val/samples", checked.validation_samples), ("val/target", target)):
            found = rows[-1][name]
            if not math.isclose(found, right, rel_tol=tolerance):
                yield f"{name} is {found}, and {right} where each sample is counted once"
    elif promise == "checkpoint":
        yield from _checkpoints(checked, one, tolerance)
    elif promise == "export":
        exported = load_file(checked.folder / "exported" / WEIGHTS)
        yield from _weights("the export", exported, "the checkpoint", checked.weights("export"), 0)


def _checkpoints(checked: Layout, one: Layout, tolerance: float) -> Iterator[str]:
    yield from _losses(checked, "resumed", checked, "saved", 0)
    final = checked.weights("saved")
    yield from _weights("the resumed run", checked.weights("resumed"), "the uninterrupted one", final, 0)
    yield from _weights("its checkpoint", final, "that of one device", one.weights("saved"), tolerance)
    one.train("resumed", resume=checked.checkpoint("saved", MIDDLE))
    for text in _losses(one, "resumed", one, "saved", tolerance):
        yield f"one device that reads its checkpoint: {text}"
    yield from _losses(checked, "resumed-from-other", one, "saved", tolerance)


def _losses(layout: Layout, name: str, other: Layout, expected: str, tolerance: float) -> Iterator[str]:
    """The first step whose loss differs."""
    found, right = (
        {row["step"]: row["train/loss"] for row in _run(*one).rows if "train/loss" in row}
        for one in ((layout, name), (other, expected))
    )
    if name.startswith("resumed"):
        right = {step: loss for step, loss in right.items() if step > MIDDLE}
    who = _LOSS_OF.get(name, "the loss of step")
    for step in sorted(found.keys() | right.keys()):
        mine, theirs = found.get(step, math.nan), right.get(step, math.nan)
        if not math.isclose(mine, theirs, rel_tol=tolerance, abs_tol=tolerance):
            where = "in the uninterrupted run" if other is layout else "on one device"
            yield f"{who} {step} is {mine}, and {theirs} {where}"
            return


def _weights(
    who: str, found: dict[str, Tensor], other: str, right: dict[str, Tensor], tolerance: float
) -> Iterator[str]:
    """The first tensor that differs."""
    if found.keys() != right.keys():
        yield f"{who} has {sorted(found)}, and {other} {sorted(right)}"
        return
    for name, value in right.items():
        if found[name].shape != value.shape:
            yield f"{name} of {who} has shape {list(found[name].shape)}, and {list(value.shape)} in {other}"
            return
        furthest = (found[name].double() - value.double()).abs().max().item()
        if not furthest <= tolerance:
            yield f"{name} of {who} differs from {other} by {furthest}"
            return


def _run(layout: Layout, name: str) -> Run:
    return Run(layout.folder / name / "1")


def _printed(checked: Layout, reports: list[ranks.Report]) -> Iterator[str]:
    """The end of what the ranks have printed that ended early."""
    for rank, report in enumerate(reports):
        if report.section:
            yield f"-- the output of rank {rank} ends with"
            yield from ranks.printed(checked.folder, rank).splitlines()[-_LINES:]
