"""Checks the Trainer's arguments at construction, all violations together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...callbacks import Callback, Profiler
from ...callbacks.batches.epoch_schedule import EpochSchedule
from ...common.argument_checks import is_valid
from ...errors import PacelineError, nearest, report, shown
from ...other_trainers import called_here
from ...other_trainers.arguments import NEEDED_BY_NONE
from ...other_trainers.imports import object_hint
from ...strategies import STRATEGIES, Precision, find_environment, make_precision, make_strategy
from ..run.runs_folder import runs_folder
from ..runtime.compilation import BLOCKS, MODES
from . import built_in
from .arguments import OFF, TrainerArguments, allowed

_SHOWN = 3
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "32", "torch.float64": "64"}
_DEVICE = re.compile(r"(cpu|gpu|cuda|mps|xpu|hpu|tpu)(?::(\d+))?")
_COMPARED = 20
"""Of how many unknown names the nearest one is looked for: a report shows fewer."""
_CHOICES = {"nonfinite": ("raise", "skip", "ignore"), "compile": (BLOCKS, *MODES)}


class _Line(str):
    """A problem that was an error: its code is that of the report, where there is no other problem."""

    code: str | None = None


class Findings(NamedTuple):
    """What there is to say about the arguments of a Trainer.

    Args:
        arguments: The validated ones; None where they cannot be read.
        problems: (name, what is wrong) for each bad one.
        cause: The error of a plugin that could not be loaded.
    """

    arguments: TrainerArguments | None
    problems: list[tuple[str, str]]
    cause: BaseException | None


def validate_arguments(given: dict[str, Any]) -> TrainerArguments:
    """Check all arguments at once.

    Raises:
        PacelineError: one report of every argument that is unknown, of the wrong type or out of range.
    """
    arguments, problems, cause = find_problems(given)
    if problems or arguments is None:
        lone = problems[0][1] if len(problems) == 1 else None
        code = lone.code if isinstance(lone, _Line) and lone.code else "invalid-arguments"
        raise report("Trainer", [f"{name}: {text}" for name, text in problems], code=code) from cause
    return arguments


def find_problems(given: dict[str, Any]) -> Findings:
    """The validated arguments, where they can be read, and what is wrong with each bad one."""
    fields = TrainerArguments.model_fields
    unknown = [name for name in given if name not in fields]
    problems = [(name, _unknown(name, number < _COMPARED)) for number, name in enumerate(unknown)]
    as_given = given
    given, errors = _with_plugins(given)
    problems += [(name, _line(error)) for name, error in errors]
    arguments = None
    try:
        arguments = TrainerArguments(**{k: v for k, v in given.items() if k in fields})
    except Exception:  # pydantic's, and those of values whose own methods raise
        wrong = [name for name in given if name in fields and not _is_valid(name, given[name])]
        problems += [(name, _violation(name, as_given[name])) for name in wrong]
    problems += _precision_problems(given)
    if not {"accelerator", "devices", "num_nodes"} & {name for name, _ in problems}:
        problems += _device_problems(given, arguments)
    if arguments is not None:
        problems += _together(arguments)
        try:
            arguments = arguments.model_copy(update={"run_dir": runs_folder(arguments.run_dir)})
        except PacelineError as error:
            problems.append(("run_dir", _line(error)))
    return Findings(arguments, problems, next((e.__cause__ for _, e in errors if e.__cause__), None))


def _with_plugins(given: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, PacelineError]]]:
    """The arguments with objects in the place of names, without the names that cannot be loaded."""
    errors: list[tuple[str, PacelineError]] = []
    given = dict(given)
    name = given.get("strategy")
    if isinstance(name, str) and name not in STRATEGIES:
        try:
            given["strategy"] = make_strategy(name)
        except PacelineError as error:
            errors.append(("strategy", error))
            del given["strategy"]
    for argument in ("callbacks", "loggers"):
        value = given.get(argument)
        several = [value] if isinstance(value, str) else value
        if isinstance(several, Sequence) and any(isinstance(one, str) for one in several):
            given[argument] = kept = []
            for one in several:
                try:
                    kept.append(_loaded(argument, one) if isinstance(one, str) else one)
                except PacelineError as error:
                    errors.append((argument, error))
    return given, errors


def _loaded(argument: str, name: str) -> Any:
    if argument == "loggers" and name.startswith("-"):
        if name not in OFF:
            raise PacelineError(
                f"loggers: there is no default logger {name[1:]!r}",
                code="unknown-choice",
                got=name,
                allowed=", ".join(map(repr, OFF)),
                meant=nearest(name, OFF),
            )
        return name
    return built_in.make(argument, name)


def _is_valid(name: str, value: Any) -> bool:
    return is_valid(lambda one: TrainerArguments(**{name: one}), value)


def _unknown(name: str, is_compared: bool) -> str:
    ours = called_here("Trainer", name)
    if name in NEEDED_BY_NONE:
        return f"there is no such argument, and none is needed: {NEEDED_BY_NONE[name]}"
    if ours is None:
        meant = nearest(name, TrainerArguments.model_fields) if is_compared else None
        return "no such argument" + (f"; did you mean {meant}?" if meant else "")
    return f"unknown argument; use {ours}"


def _violation(name: str, value: Any) -> str:
    if name in ("callbacks", "loggers"):
        return _wrong_items(name, value)
    got = shown(value, 60)
    meant = ""
    if isinstance(value, str) and name in _CHOICES:
        near = nearest(value, _CHOICES[name])
        meant = f"; did you mean {near!r}?" if near else ""
    return f"got {got}; allowed: {allowed(name)}{meant or _meant_value(name, value)}"


def _meant_value(name: str, value: Any) -> str:
    """What a number was meant to be that is a duration, and a device that is a count of them."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and name == "max_time":
        return f'; did you mean "{value}s"?'
    if isinstance(value, float) and name.startswith("limit_") and value > 1 and value.is_integer():
        return f"; did you mean {int(value)}?"
    if isinstance(value, float) and name in ("validate_every", "log_every"):
        return f'; did you mean "{value:g}ep"?'
    is_device = isinstance(value, (str, torch.device))
    device = _DEVICE.fullmatch(str(value)) if name == "devices" and is_device else None
    if device is None:
        return ""
    return f"; accelerator={device[1]!r} is the kind of device, devices=[{device[2] or 0}] which of them"


def _wrong_items(name: str, value: Any) -> str:
    """Which of several callbacks or loggers are none, and what is to be there."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    places = {f"{name}[{i}]": one for i, one in enumerate(value)} if is_list else {"": value}
    # Names have been looked up: what is wrong with one is said already.
    wrong = {p: one for p, one in places.items() if not isinstance(one, str) and not _is_valid(name, [one])}
    items, fixes = [], []
    for place, one in wrong.items() if is_list else places.items():
        is_class = isinstance(one, type)
        what = (
            f"the class {one.__name__}" if is_class else f"of type {type(one).__name__}: {shown(one, 60)}"
        )
        items.append(f"{place}, {what}" if place else shown(one, 60))
        if is_class and issubclass(one, Callback):
            fixes.append(f"make an object, {one.__name__}(...)")
        elif isinstance(one, Callback):
            fixes.append(f"{type(one).__name__} is no logger: pass it in callbacks=[...]")
        else:
            fixes.append(object_hint(one))
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    hints = "".join(f"; {fix}" for fix in dict.fromkeys(filter(None, fixes[:_SHOWN])))
    return f"got {'; '.join(items[:_SHOWN])}{more}{hints}; allowed: {allowed(name)}"


def _line(error: PacelineError) -> str:
    """The message of the part that reads an argument, on one line and without the argument's name."""
    first, *rest = str(error).splitlines()
    return _coded(error, [first.partition(": ")[2] or first, *rest])


def _coded(error: PacelineError, lines: list[str]) -> _Line:
    line = _Line("; ".join(map(str.strip, lines)))
    line.code = error.code
    return line


def _precision_problems(given: dict[str, Any]) -> list[tuple[str, str]]:
    precision = given.get("precision", "32")
    if isinstance(precision, Precision):
        return []
    if isinstance(precision, bool) or not isinstance(precision, (str, int)):
        meant = _DTYPES.get(shown(precision))
        hint = f"; did you mean {meant!r}?" if meant else ""
        return [("precision", f"got {shown(precision, 60)}; allowed: {allowed('precision')}{hint}")]
    try:
        make_precision(precision)
    except PacelineError as error:
        return [("precision", _line(error))]
    return []


def _device_problems(given: dict[str, Any], arguments: TrainerArguments | None) -> list[tuple[str, str]]:
    try:
        fields = ("accelerator", "devices", "num_nodes")
        read = arguments or TrainerArguments(**{name: given[name] for name in fields if name in given})
        find_environment(read.accelerator, read.devices, read.num_nodes)
    except PacelineError as error:
        name = "accelerator" if "accelerator=" in str(error) else "devices"
        return [(name, _coded(error, str(error).splitlines()))]
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
