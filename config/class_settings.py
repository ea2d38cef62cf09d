"""Optimizers and schedules as settings of a recipe: a name, or a class with arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel

from .. import schedules
from ..trainer.module_parts.model_steps import takes_module
from .classes import ClassSpec, attempt, check_call, find_target
from .names import provided_to, slots
from .signatures import parameters_of
from .violations import Problems, report_of


@dataclass(frozen=True)
class ClassSetting:
    """Marks a field of a ``Config`` that names a class, so that its arguments are checked before the run.

    Args:
        slot: What it may be: ``"optimizer"`` or ``"scheduler"``.
    """

    slot: str


OptimizerSetting = Annotated[str | dict[str, Any], ClassSetting("optimizer")]
"""``AdamW``, or ``{class: AdamW, betas: [0.9, 0.95]}``: a class of ``torch.optim``, of
``paceline.optimizers``, one with a name here, or an import path."""
SchedulerSetting = Annotated[str | dict[str, Any], ClassSetting("scheduler")]
"""``cosine``, or ``{class: cosine, end: 0.1}``: a schedule of ``paceline.schedules``, a class of
``torch.optim.lr_scheduler``, or an import path."""


def check_class_settings(model: type[BaseModel], values: Mapping[str, Any], problems: Problems) -> None:
    """Check the arguments of the classes that fields of this kind name; nothing is built.

    Args:
        model: The ``Config``.
        values: What it was given.
        problems: Takes what is wrong, by dotted key.
    """
    for name, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, ClassSetting) and isinstance(values.get(name), (str, dict)):
                read_part(mark.slot, values[name], name, problems, is_partial=True)


def read_part(
    slot: str, value: Any, path: str, problems: Problems, is_partial: bool = False
) -> ClassSpec | None:
    """An optimizer or a schedule of a config, or None after adding to ``problems``.

    Args:
        slot: Which of both.
        value: A name, or a mapping with a class and its arguments.
        path: The dotted key that it has.
        problems: Takes what is wrong.
        is_partial: Whether other arguments follow later.
    """
    found = find_target(value, slots()[slot], path, problems)
    if found is None:
        return None
    target, given = found
    provided = provided_to(slots()[slot], target)
    arguments = check_call(target, given, provided, path, problems, is_partial)
    spec = None if arguments is None else ClassSpec(target, arguments)
    if spec is not None and target in schedules.SCHEDULES.values():
        # It needs no optimizer, and checks its durations; nothing of the user's is called.
        attempt(spec.build, path, problems)
    return spec


def make_optimizer(
    setting: str | dict[str, Any], parameters: Any, module: Any = None, **defaults: Any
) -> Any:
    """The optimizer that a setting of this kind names.

    Args:
        setting: A name, or a mapping with a class and its arguments.
        parameters: What it trains: parameters, or groups of them.
        module: What classes get that take a module in their place, as ``MuonWithAdamW`` does.
        **defaults: Arguments that the setting does not give, such as ``lr``; those that the class does not
            take are dropped, but for ``lr``.

    Raises:
        PacelineError: for a setting that is not right.

    Example:
        >>> optimizer = make_optimizer({"class": "AdamW", "betas": [0.8, 0.9]}, Net().parameters(), lr=0.1)
        >>> optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["lr"]
        ((0.8, 0.9), 0.1)
    """
    spec = _spec("optimizer", setting, defaults, keeps=("lr",))
    return spec.build(module if takes_module(spec.target) else parameters)


def make_scheduler(setting: str | dict[str, Any], optimizer: Any, **defaults: Any) -> Any:
    """The schedule that a setting of this kind names, for ``configure_optimizers`` to return.

    Args:
        setting: A name, or a mapping with a class and its arguments.
        optimizer: Whose rates it changes; schedules of ``paceline.schedules`` get it later.
        **defaults: Arguments that the setting does not give, such as ``warmup``; those that the class does
            not take are dropped.

    Raises:
        PacelineError: for a setting that is not right.

    Example:
        >>> make_scheduler({"class": "cosine", "end": 0.1}, None, warmup="5%")
        Cosine(warmup='5%', warmup_start=None, end=0.1)
    """
    spec = _spec("scheduler", setting, defaults)
    return spec.build(*[optimizer] * provided_to(slots()["scheduler"], spec.target))


def _spec(
    slot: str, setting: str | dict[str, Any], defaults: Mapping[str, Any], keeps: tuple[str, ...] = ()
) -> ClassSpec:
    problems: Problems = []
    spec = read_part(slot, setting, slot, problems, is_partial=True)
    if spec is None:
        raise report_of(f"{path}: {text}" for path, text in problems)
    known, takes_more = parameters_of(spec.target, provided_to(slots()[slot], spec.target))
    more = {name: value for name, value in defaults.items() if name in known or takes_more or name in keeps}
    return replace(spec, arguments=more | spec.arguments)
