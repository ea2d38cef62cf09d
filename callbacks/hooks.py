"""The places in a run where user code is called, and the table that calls it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError, nearest, shown
from ..other_trainers.methods import HOOKS as THEIRS
from .hook_arguments import Problem, wrong_arguments

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..durations import StepPosition
    from .trainer_view import TrainerView


class Hooks:
    """Every hook of a run, each with one place in the loop (docs/extending/loop.md shows all of them).

    Trailing arguments may be omitted when you override one. A hook nobody overrides costs nothing.
    ``stage`` is ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.

    Example:
        >>> class Frozen(Net):  # a module has the same hooks as a callback
        ...     def on_fit_start(self):
        ...         self.layer.bias.requires_grad_(False)
        >>> run = trainer.fit(Frozen(), train_loader)
    """

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        """First of all, before data and optimizers are built."""

    def on_fit_start(self, trainer: TrainerView) -> None:
        """Everything is built and restored; nothing has run."""

    def on_train_epoch_start(self, trainer: TrainerView) -> None:
        """Before the first step of an epoch (or of what is left of it after a resume)."""

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        """Before an optimizer step; ``batches`` are its micro-batches, on the device.

        Called again for the same step where ``Trainer(batch_size="auto")`` repeats it.
        """

    def on_before_optimizer_step(self, trainer: TrainerView, optimizer: Optimizer) -> None:
        """Gradients are reduced and unscaled, not yet clipped."""

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        """After the update; ``global_step`` already counts it. ``outputs``: one per micro-batch."""

    def on_validation_start(self, trainer: TrainerView) -> None:
        """Before a validation, the module already in eval mode."""

    def on_validation_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        """After each validation batch."""

    def on_validation_end(self, trainer: TrainerView) -> None:
        """After a validation; its values are in ``trainer.metrics``."""

    def on_test_start(self, trainer: TrainerView) -> None:
        """Before a test."""

    def on_test_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        """After each test batch."""

    def on_test_end(self, trainer: TrainerView) -> None:
        """After a test; its values are in ``trainer.metrics``."""

    def on_predict_start(self, trainer: TrainerView) -> None:
        """Before a prediction."""

    def on_predict_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        """After each prediction batch."""

    def on_predict_end(self, trainer: TrainerView) -> None:
        """After a prediction."""

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        """After an epoch's last step and the validation that belongs to it."""

    def on_step_boundary(self, trainer: TrainerView) -> None:
        """A step and all that followed it (validation, epoch end, schedules) are finished.

        The state is whole here: this is where checkpoints are written.
        """

    def on_fit_end(self, trainer: TrainerView) -> None:
        """At a normal end and after ``trainer.stop`` or a signal."""

    def on_save_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        """Add plain data to ``state``; it comes back in ``on_load_checkpoint``."""

    def on_load_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        """``state`` as ``on_save_checkpoint`` left it."""

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        """Once, when an error ends the run."""

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        """Always, last of all: release what you hold."""


HOOKS = tuple(name for name in vars(Hooks) if name.startswith("on_"))
# Modules alone have these, and DataModules: what they return is the batch.
OF_MODULES = ("on_before_batch_transfer", "on_after_batch_transfer")

# Callbacks before the module when something opens, after it when something closes: nested like `with`.
_OPENING = ("on_setup", "on_before_optimizer_step", "on_load_checkpoint")
_AFTER_STEPS = ("on_step_end", "on_step_boundary")


class HookTable:
    """For each hook the functions that really exist, built once: ``for hook in table["on_step_end"]``.

    Args:
        module: Has the same hooks as callbacks.
        callbacks: In their order.
        around: Of the owner of a hook, the hook's name and the hook, what is called in its place.

    Attributes:
        each_step: Of ``on_step_end`` and ``on_step_boundary`` those to call after a step with which nothing
            is due: all, until ``next_due`` is asked.
    """

    def __init__(
        self,
        module: Any,
        callbacks: Iterable[Any],
        around: Callable[[Any, str, Callable[..., None]], Callable[..., None]] = lambda owner, name, hook: (
            hook
        ),
    ) -> None:
        self._table: dict[str, tuple[Callable[..., None], ...]] = {}
        self.each_step: dict[str, tuple[Callable[..., None], ...]] = {}
        watchers = list(callbacks)
        self._askers = {id(one): _asker(one) for one in watchers if says_when(one)}
        self._waiting: dict[str, list[int]] = {}  # whose each hook is; 0: it is called after every step
        self._due: dict[int, float] = {}
        for name in HOOKS:
            arity = len(_given(name))
            opening = name.endswith("_start") or name in _OPENING
            owners = [*watchers, module] if opening else [module, *watchers]
            found = [
                (owner, around(owner, name, with_arity(getattr(owner, name), arity)))
                for owner in owners
                if _overrides(owner, name)
            ]
            self._table[name] = tuple(hook for _, hook in found)
            if name in _AFTER_STEPS:
                asked = [id(o) in self._askers and _says_when_for(o, name) for o, _ in found]
                self._waiting[name] = [id(o) if a else 0 for (o, _), a in zip(found, asked, strict=True)]
                self.each_step[name] = self._table[name]

    def next_due(self, at: StepPosition) -> float:
        """Ask the callbacks that say when they are due: the earliest step; ``each_step`` is without them.

        One whose answer does not lie after ``at`` is called after every step until it is asked again.

        Raises:
            PacelineError: for an answer that is no number.
        """
        answers = {key: ask(at) for key, ask in self._askers.items()}
        self._due = {key: due for key, due in answers.items() if due > at.global_step}
        for name in _AFTER_STEPS:
            self.each_step[name] = self.after(name, at.global_step)
        return min(self._due.values(), default=math.inf)

    def after(self, name: str, step: int) -> tuple[Callable[..., None], ...]:
        """Of one of the two hooks after a step, those that are due with this one."""
        pairs = zip(self._table[name], self._waiting[name], strict=True)
        return tuple(hook for hook, key in pairs if self._due.get(key, 0.0) <= step)

    def __getitem__(self, name: str) -> tuple[Callable[..., None], ...]:
        return self._table[name]

    def call(self, name: str, *args: Any) -> None:
        """Call every function of one hook, in order."""
        for hook in self._table[name]:
            hook(*args)


def _overrides(owner: Any, name: str) -> bool:
    found = getattr(owner, name, None)
    return found is not None and getattr(found, "__func__", found) is not getattr(Hooks, name)


def says_when(callback: Any) -> bool:
    """Whether ``next_due`` of a callback is asked."""
    return any(_says_when_for(callback, name) for name in _AFTER_STEPS)


def _says_when_for(owner: Any, name: str) -> bool:
    """Whether it overrides a hook, and the same class or one derived from it overrides ``next_due``."""
    for place in (owner, *type(owner).__mro__):
        if "next_due" in vars(place) or name in vars(place):
            return callable(vars(place).get("next_due")) and _overrides(owner, name)
    return False


def _asker(callback: Any) -> Callable[[StepPosition], float]:
    """``next_due`` of a callback, with its answer checked."""
    ask = with_arity(callback.next_due, 1)

    def checked(at: StepPosition) -> float:
        due = ask(at)
        if isinstance(due, bool) or not isinstance(due, Real) or math.isnan(due):
            raise PacelineError(
                f"{type(callback).__name__}.next_due must return the next step that it acts after",
                code="override-incomplete",
                got=shown(due),
                fix="return a number of steps, math.inf or 0; or rename the method, if it is yours",
            )
        return float(due)

    return checked


def with_arity(hook: Callable[..., Any], given: int) -> Callable[..., Any]:
    """Let a hook that is called with ``given`` arguments leave out trailing ones."""
    kinds = [p.kind for p in inspect.signature(hook).parameters.values()]
    taken = sum(
        k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds
    )
    if taken >= given or inspect.Parameter.VAR_POSITIONAL in kinds:
        return hook
    return lambda *args: hook(*args[:taken])


def meant_hook(name: str) -> str | None:
    """The hook that is meant by a name that is none: another trainer's name for it, or the nearest one."""
    return THEIRS[name][0] if name in THEIRS else nearest(name, HOOKS)


def hook_problems(owner: Any, also: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Hooks of a module or callback that do not exist, or do not take what they would get.

    Args:
        owner: The module or callback.
        also: Names of hooks that it has besides those of every owner.
    """
    who = type(owner).__name__
    for name in dir(type(owner)):
        if not name.startswith("on_") or name in HOOKS or name in also:
            continue
        if callable(getattr(type(owner), name, None)):
            yield _no_hook(who, name)
    for name in HOOKS:
        if _overrides(owner, name):
            wrong = wrong_arguments(who, name, getattr(owner, name), _given(name))
            if wrong is not None:
                yield wrong


def _given(name: str) -> tuple[str, ...]:
    """What a hook is called with."""
    return tuple(inspect.signature(getattr(Hooks, name)).parameters)[1:]


def _no_hook(who: str, name: str) -> Problem:
    meant = meant_hook(name)
    fix = "take the name of the hook you mean, or one that does not begin with on_"
    if meant is not None:
        note = THEIRS[name][1] if name in THEIRS else ""
        fix = f"def {meant}({', '.join(('self', *_given(meant)))})" + (note and f"; {note}")
    return Problem(
        what=f"{who}.{name} is no hook of a run, so it would never be called",
        allowed=", ".join(HOOKS),
        meant=meant,
        fix=fix,
    )
