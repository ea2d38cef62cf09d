"""The places in a run where user code is called, and the table that calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError, nearest

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .trainer_view import TrainerView


class Hooks:
    """Every hook of a run, each with one place in the loop (docs/loop.md shows all of them).

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
        """Before an optimizer step; ``batches`` are its micro-batches, on the device."""

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

_PEERS = {
    "on_train_start": "on_fit_start",
    "on_train_end": "on_fit_end",
    "on_train_batch_start": "on_step_start",
    "on_train_batch_end": "on_step_end",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_validation_batch_end": "on_validation_step_end",
    "on_validation_epoch_start": "on_validation_start",
    "on_validation_epoch_end": "on_validation_end",
    "on_test_batch_end": "on_test_step_end",
    "on_test_epoch_end": "on_test_end",
    "on_predict_batch_end": "on_predict_step_end",
    "on_before_zero_grad": "on_step_end",
    "on_log": "on_step_end",
    "on_save": "on_save_checkpoint",
    "on_step_begin": "on_step_start",
    "on_train_begin": "on_fit_start",
}


class HookTable:
    """For each hook the functions that really exist, built once: ``for hook in table["on_step_end"]``."""

    def __init__(self, module: Any, callbacks: Iterable[Any]) -> None:
        self._table: dict[str, tuple[Callable[..., None], ...]] = {}
        watchers = list(callbacks)
        _refuse_unknown_hooks(module, also=OF_MODULES)
        for watcher in watchers:
            _refuse_unknown_hooks(watcher)
        for name in HOOKS:
            arity = len(inspect.signature(getattr(Hooks, name)).parameters) - 1
            opening = name.endswith("_start") or name in _OPENING
            owners = [*watchers, module] if opening else [module, *watchers]
            self._table[name] = tuple(
                with_arity(getattr(owner, name), arity) for owner in owners if _overrides(owner, name)
            )

    def __getitem__(self, name: str) -> tuple[Callable[..., None], ...]:
        return self._table[name]

    def call(self, name: str, *args: Any) -> None:
        """Call every function of one hook, in order."""
        for hook in self._table[name]:
            hook(*args)


def _overrides(owner: Any, name: str) -> bool:
    found = getattr(owner, name, None)
    return found is not None and getattr(found, "__func__", found) is not getattr(Hooks, name)


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
    """The hook that is meant by a name that is none: a peer's name for it, or the nearest one."""
    return _PEERS.get(name) or nearest(name, HOOKS)


def _refuse_unknown_hooks(owner: Any, also: tuple[str, ...] = ()) -> None:
    for name in dir(type(owner)):
        known = name in HOOKS or name in also
        if not name.startswith("on_") or known or not callable(getattr(type(owner), name)):
            continue
        raise PacelineError(
            f"{type(owner).__name__}.{name} is no hook of a run, so it would never be called",
            allowed=", ".join(HOOKS),
            meant=meant_hook(name),
            fix="take the name of the hook you mean, or one that does not begin with on_",
        )
