"""Checks the Trainer's arguments at construction, all violations together."""

from __future__ import annotations

from typing import Any

from ...argument_checks import is_valid
from ...callbacks import Profiler
from ...callbacks.epoch_schedule import EpochSchedule
from ...errors import PacelineError, nearest, report, shown
from ...strategies import Precision, find_environment, make_precision, make_strategy
from ..runtime.compilation import BLOCKS, MODES
from .arguments import TrainerArguments, allowed
from .peer_names import TRAINER_NEEDS_NONE, TRAINER_PEERS

_CHOICES = {"nonfinite": ("raise", "skip", "ignore"), "compile": (BLOCKS, *MODES)}


def validate_arguments(given: dict[str, Any]) -> TrainerArguments:
    """Check all arguments at once.

    Raises:
        PacelineError: one report of every argument that is unknown, of the wrong type or out of range.
    """
    arguments, problems = find_problems(given)
    if problems or arguments is None:
        raise report("Trainer", [f"{name}: {text}" for name, text in problems])
    return arguments


def find_problems(given: dict[str, Any]) -> tuple[TrainerArguments | None, list[tuple[str, str]]]:
    """The validated arguments, where they can be read, and (name, what is wrong) for each bad one."""
    fields = TrainerArguments.model_fields
    problems = [(name, _unknown(name)) for name in given if name not in fields]
    arguments = None
    try:
        arguments = TrainerArguments(**{k: v for k, v in given.items() if k in fields})
    except Exception:  # pydantic's, and those of values whose own methods raise
        wrong = [name for name in given if name in fields and not _is_valid(name, given[name])]
        problems += [(name, _violation(name, given[name])) for name in wrong]
    problems += _precision_problems(given)
    if not {"accelerator", "devices", "num_nodes"} & {name for name, _ in problems}:
        problems += _device_problems(given, arguments)
    if arguments is not None:
        problems += _together(arguments)
    return arguments, problems


def _is_valid(name: str, value: Any) -> bool:
    return is_valid(lambda one: TrainerArguments(**{name: one}), value)


def _unknown(name: str) -> str:
    ours = TRAINER_PEERS.get(name)
    if name in TRAINER_NEEDS_NONE:
        return f"there is no such argument, and none is needed: {TRAINER_NEEDS_NONE[name]}"
    if ours is None:
        meant = nearest(name, TrainerArguments.model_fields)
        return "no such argument" + (f"; did you mean {meant}?" if meant else "")
    return f"unknown argument; use {ours}"


def _violation(name: str, value: Any) -> str:
    got = shown(value, 60)
    meant = ""
    if isinstance(value, str) and name in _CHOICES:
        near = nearest(value, _CHOICES[name])
        meant = f"; did you mean {near!r}?" if near else ""
    if name == "strategy" and isinstance(value, str):
        return _as_line("strategy", value)
    return f"got {got}; allowed: {allowed(name)}{meant}"


def _as_line(name: str, value: Any) -> str:
    """The message of the part that reads this argument, on one line."""
    try:
        make_strategy(value) if name == "strategy" else make_precision(value)
    except PacelineError as error:
        first, *rest = str(error).splitlines()
        what = first.partition(": ")[2]
        return "; ".join([what, *(line.strip() for line in rest)])
    return ""


def _precision_problems(given: dict[str, Any]) -> list[tuple[str, str]]:
    precision = given.get("precision", "32")
    if isinstance(precision, Precision):
        return []
    if isinstance(precision, bool) or not isinstance(precision, (str, int)):
        return [("precision", f"got {shown(precision, 60)}; allowed: {allowed('precision')}")]
    line = _as_line("precision", precision)
    return [("precision", line)] if line else []


def _device_problems(given: dict[str, Any], arguments: TrainerArguments | None) -> list[tuple[str, str]]:
    try:
        fields = ("accelerator", "devices", "num_nodes")
        read = arguments or TrainerArguments(**{name: given[name] for name in fields if name in given})
        find_environment(read.accelerator, read.devices, read.num_nodes)
    except PacelineError as error:
        name = "accelerator" if "accelerator=" in str(error) else "devices"
        return [(name, "; ".join(line.strip() for line in str(error).splitlines()))]
    return []


def _together(arguments: TrainerArguments) -> list[tuple[str, str]]:
    problems = []
    if arguments.global_batch_size is not None and arguments.accumulate != 1:
        problems.append(("accumulate", "follows from global_batch_size; give one of the two"))
    schedules = [c for c in arguments.callbacks if isinstance(c, EpochSchedule)]
    for schedule in schedules:
        for name, default in schedule.excludes.items():
            if getattr(arguments, name) != default:
                problems.append((name, f"{type(schedule).__name__} gives it; give one of the two"))
    if len(schedules) > 1:
        names = " and ".join(type(schedule).__name__ for schedule in schedules)
        problems.append(("callbacks", f"{names} both give the size of a step; give one of the two"))
    if isinstance(arguments.profile, Profiler) and any(
        isinstance(c, Profiler) for c in arguments.callbacks
    ):
        problems.append(("profile", "callbacks has a Profiler; give one of the two"))
    for least, most in (("min_epochs", "max_epochs"), ("min_steps", "max_steps")):
        low, high = getattr(arguments, least), getattr(arguments, most)
        if low is not None and high is not None and low > high:
            problems.append((least, f"got {low}, and {most} is {high}"))
    keys = [c.state_key for c in arguments.callbacks]
    doubled = sorted({k for k in keys if keys.count(k) > 1})
    if doubled:
        problems.append(("callbacks", f"two of {doubled[0]}; give each a name="))
    return problems
