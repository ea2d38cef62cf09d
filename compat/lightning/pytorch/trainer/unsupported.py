"""What a module or a callback overrides that nothing here calls.

What Lightning refuses is refused, before anything is computed; what it ignores is a line for the user.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from .....errors import PacelineError, nearest

_MODULE = {
    "training_step_end": "what follows the step belongs at its end",
    "validation_step_end": "what follows the step belongs at its end",
    "test_step_end": "what follows the step belongs at its end",
    "training_epoch_end": "on_train_epoch_end(self), with outputs kept in training_step",
    "validation_epoch_end": "on_validation_epoch_end(self), with outputs kept in validation_step",
    "test_epoch_end": "on_test_epoch_end(self), with outputs kept in test_step",
    "predict_epoch_end": "on_predict_epoch_end(self)",
    "on_epoch_start": "on_train_epoch_start(self)",
    "on_epoch_end": "on_train_epoch_end(self)",
    "on_batch_start": "on_train_batch_start(self, batch, batch_idx)",
    "on_batch_end": "on_train_batch_end(self, outputs, batch, batch_idx)",
    "on_pretrain_routine_start": "on_fit_start(self)",
    "on_pretrain_routine_end": "on_fit_start(self)",
    "configure_sharded_model": "configure_model(self)",
    "get_progress_bar_dict": "self.log(..., prog_bar=True)",
    "tbptt_split_batch": "a loop over the parts in training_step, with manual optimization",
    "on_tpu_start": "on_fit_start(self)",
    "on_hpc_save": "on_save_checkpoint(self, checkpoint)",
    "on_hpc_load": "on_load_checkpoint(self, checkpoint)",
}
_CALLBACK = {
    "on_init_start": "setup",
    "on_init_end": "setup",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_keyboard_interrupt": "on_exception",
    "on_configure_sharded_model": "setup",
    "on_pretrain_routine_start": "on_fit_start",
    "on_pretrain_routine_end": "on_fit_start",
}
_REFUSED = (".training_epoch_end", ".validation_epoch_end", ".test_epoch_end", ".configure_sharded_model")
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def check_module(module: Any, callbacks: Iterable[Any], bases: tuple[type, ...]) -> list[str]:
    """Refuse what Lightning refuses too, all in one report.

    Returns:
        What is never called, as it is under Lightning, each with the way.

    Raises:
        PacelineError: naming each with the way here.
    """
    ignored = [*_found(module, _MODULE, bases)]
    for callback in callbacks:
        ignored += _found(callback, _CALLBACK, bases)
    found = [line for line in ignored if line.partition(":")[0].endswith(_REFUSED)]
    for name in _STEPS:
        parameters = inspect.signature(getattr(module, name)).parameters
        if "dataloader_iter" in parameters:
            found.append(f"{type(module).__name__}.{name}(dataloader_iter): take (self, batch, batch_idx)")
        if "optimizer_idx" in parameters or "hiddens" in parameters:
            given = f"{type(module).__name__}.{name}({', '.join(parameters)})"
            found.append(f"{given}: manual optimization, as in Lightning 2")
    if found:
        shown = found[:8] + ([f"and {len(found) - 8} more"] if len(found) > 8 else [])
        raise PacelineError(
            "these would never be called:\n  " + "\n  ".join(shown),
            code="hook-mismatch",
            fix="write what is named after each of them",
        )
    return [f"never called by the trainer: {line}" for line in ignored]


def _found(owner: Any, known: dict[str, str], bases: tuple[type, ...]) -> Iterable[str]:
    mine = {name for name in dir(type(owner)) if not any(hasattr(base, name) for base in bases)}
    for name in sorted(mine & set(known)):
        yield f"{type(owner).__name__}.{name}: {known[name]}"
    hooks = {name for base in bases for name in dir(base) if name.startswith("on_")}
    for name in sorted(mine - set(known) - hooks):
        near = nearest(name, sorted(hooks)) if name.startswith("on_") else None
        if near is not None and callable(getattr(type(owner), name)):
            yield f"{type(owner).__name__}.{name}: no hook of Lightning's; did you mean {near}?"
