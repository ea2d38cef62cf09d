"""The methods that a user writes, compared with how a run calls them: before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from ....callbacks import Callback
from ....callbacks.hook_arguments import Problem, wrong_arguments
from ....callbacks.hooks import OF_MODULES, hook_problems, says_when
from ....errors import report
from ....other_trainers.methods import CALLBACK_METHODS, DATAMODULE_METHODS, MODULE_METHODS, Method
from ...batch_hooks import BATCH_HOOKS
from ...datamodule import DataModule
from ...module import TrainModule
from ...phases import PHASES, STEPS

_EVALUATION = ("batch", "batch_idx", "dataloader_idx")
_FIT = {
    "configure_optimizers": (),
    "training_step": ("batch", "batch_idx"),
    "validation_step": _EVALUATION,
    "lr_scheduler_step": ("scheduler", "metric"),
}
_AUTOMATIC = {"backward": ("loss",), "optimizer_step": ("optimizer", "closure")}
_DATA = {"prepare_data": (), "setup": ("stage",), "teardown": ("stage",)}
_STATE = {"state_dict": (), "load_state_dict": ("state",)}
_BATCH = {
    name: ("batch", "device", "dataloader_idx")
    if name.startswith("transfer")
    else ("batch", "dataloader_idx")
    for name in BATCH_HOOKS
}
# How many arguments a method must take, where it may not leave out all of them.
_LEAST = {"backward": 1, "optimizer_step": 2} | dict.fromkeys(
    ("training_step", *STEPS.values(), *_BATCH), 1
)


def check_methods(stage: str, module: TrainModule, datamodule: Any, callbacks: Iterable[Callback]) -> None:
    """Refuse hooks, steps and data methods that cannot be called as they are, or would never be called.

    Args:
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        module: What is run.
        datamodule: The DataModule, or None.
        callbacks: All of the run.

    Raises:
        PacelineError: one report of all of them.
    """
    problems = [*_of_module(stage, module), *_of_datamodule(stage, datamodule)]
    for callback in callbacks:
        problems += _of_callback(callback)
    if len(problems) == 1:
        raise problems[0].error()
    if problems:
        raise report(stage, [problem.line() for problem in problems], "method", code="hook-mismatch")


def _of_module(stage: str, module: TrainModule) -> Iterator[Problem]:
    yield from hook_problems(module, also=OF_MODULES)
    yield from _never_called(module, TrainModule, MODULE_METHODS)
    called: dict[str, tuple[str, ...]] = _DATA | _dataloaders(stage) | _BATCH | {"configure_model": ()}
    if stage == "fit":
        called |= _FIT | (_AUTOMATIC if module.automatic_optimization else {})
    else:
        called[STEPS[stage]] = _EVALUATION
    yield from _called(module, called)


def _of_datamodule(stage: str, datamodule: Any) -> Iterator[Problem]:
    if datamodule is None:
        return
    if isinstance(datamodule, DataModule):
        yield from _hooks_of_data(datamodule)
        yield from _never_called(datamodule, DataModule, DATAMODULE_METHODS)
    yield from _called(datamodule, _DATA | _dataloaders(stage) | _BATCH | _STATE)


def _of_callback(callback: Callback) -> Iterator[Problem]:
    yield from hook_problems(callback)
    yield from _never_called(callback, Callback, CALLBACK_METHODS)
    due: dict[str, tuple[str, ...]] = {"next_due": ("at",)} if says_when(callback) else {}
    yield from _called(callback, _STATE | {"evaluation": ("trainer",)} | due)


def _dataloaders(stage: str) -> dict[str, tuple[str, ...]]:
    kinds = ("train", "val") if stage == "fit" else (PHASES[stage],)
    return {f"{kind}_dataloader": () for kind in kinds}


def _called(owner: Any, methods: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    for name, given in methods.items():
        method = getattr(owner, name, None)
        if callable(method):
            wrong = wrong_arguments(type(owner).__name__, name, method, given, _LEAST.get(name, 0))
            if wrong is not None:
                yield wrong


def _hooks_of_data(datamodule: DataModule) -> Iterator[Problem]:
    cls = type(datamodule)
    for name in dir(cls):
        if name.startswith("on_") and name not in BATCH_HOOKS and callable(getattr(cls, name)):
            yield Problem(
                what=f"{cls.__name__}.{name} would never be called: modules and callbacks have hooks",
                allowed=", ".join(BATCH_HOOKS),
                fix=f"write {name} in the module or in a callback",
            )


def _never_called(owner: Any, base: type, theirs: Mapping[str, Method]) -> Iterator[Problem]:
    """Methods of other trainers, but for the author's own helpers, which other methods call."""
    cls = type(owner)
    for name, method in theirs.items():
        function = getattr(cls, name, None)
        if function is None or hasattr(base, name) or not inspect.isroutine(function):
            continue
        if _begins_with(function, method.arguments) and not _is_called_by_author(cls, base, name):
            yield Problem(
                what=f"{cls.__name__}.{name} would never be called: it is a method of other trainers",
                fix=f"{method.fix}; or give a method of your own another name",
            )


def _begins_with(function: Callable[..., Any], arguments: tuple[str, ...]) -> bool:
    if not arguments:
        return True
    try:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        return False
    return tuple(names[: len(arguments)]) == arguments


def _is_called_by_author(cls: type, base: type, name: str) -> bool:
    for owner in cls.__mro__:
        if owner in base.__mro__:
            continue
        for other, member in vars(owner).items():
            code = getattr(getattr(member, "__func__", member), "__code__", None)
            if other != name and code is not None and name in _names_in(code):
                return True
    return False


def _names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes that a function uses, its inner functions included."""
    inner = [_names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
