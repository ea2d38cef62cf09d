"""Lightning's hooks: which of them a user's objects have, called in Lightning's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class ModuleHooks:
    """The hooks of a ``LightningModule``, with Lightning's arguments.

    Source: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#hooks
    """

    def configure_model(self) -> None:
        """Build parts of the module, after ``setup``."""

    def on_fit_start(self) -> None:
        """Optimizers exist; nothing has run."""

    def on_fit_end(self) -> None:
        """The fit is over."""

    def on_train_start(self) -> None:
        """Before the first epoch of the fit."""

    def on_train_end(self) -> None:
        """After its last epoch."""

    def on_train_epoch_start(self) -> None:
        """Before an epoch's first batch."""

    def on_train_epoch_end(self) -> None:
        """After its last batch and the validation that follows it."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        """Before a batch; the module's may return -1 to end the epoch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a batch; ``outputs`` holds the detached loss and what was returned beside it."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_end(self) -> None:
        """After a validation; its values are known."""

    def on_validation_epoch_start(self) -> None:
        """Before its first batch."""

    def on_validation_epoch_end(self) -> None:
        """After its last batch; metric objects are whole."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a batch."""

    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a batch."""

    def on_validation_model_eval(self) -> None:
        """In the place of switching to eval mode, where it is overridden."""

    def on_validation_model_train(self) -> None:
        """After it; each part's own mode is restored."""

    def on_validation_model_zero_grad(self) -> None:
        """Before a validation inside the fit."""

    def on_test_start(self) -> None:
        """Before a test."""

    def on_test_end(self) -> None:
        """After a test; its values are known."""

    def on_test_epoch_start(self) -> None:
        """Before its first batch."""

    def on_test_epoch_end(self) -> None:
        """After its last batch; metric objects are whole."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a batch."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a batch."""

    def on_test_model_eval(self) -> None:
        """In the place of switching to eval mode, where it is overridden."""

    def on_test_model_train(self) -> None:
        """After it; each part's own mode is restored."""

    def on_predict_start(self) -> None:
        """Before a prediction."""

    def on_predict_end(self) -> None:
        """After a prediction; its values are known."""

    def on_predict_epoch_start(self) -> None:
        """Before its first batch."""

    def on_predict_epoch_end(self) -> None:
        """After its last batch; metric objects are whole."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a batch."""

    def on_predict_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a batch."""

    def on_predict_model_eval(self) -> None:
        """In the place of switching to eval mode, where it is overridden."""

    def on_predict_model_train(self) -> None:
        """After it; each part's own mode is restored."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Before gradients are cleared."""

    def on_before_backward(self, loss: Any) -> None:
        """Before backward."""

    def on_after_backward(self) -> None:
        """After backward."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Gradients are reduced and unscaled, not yet clipped."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add plain data to the dictionary."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The dictionary as it was saved."""


class CallbackHooks:
    """The hooks of a ``Callback``, with Lightning's arguments.

    Source: https://lightning.ai/docs/pytorch/stable/extensions/callbacks.html#callback-api
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before a stage."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """After a stage."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers exist; nothing has run."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The fit is over."""

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the validation batches that are read first."""

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """After them."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first epoch of the fit."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """After its last epoch."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before an epoch's first batch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After its last batch and the validation that follows it."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Before a batch; the module's may return -1 to end the epoch."""

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a batch; ``outputs`` holds the detached loss and what was returned beside it."""

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Before a validation."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """After a validation; its values are known."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before its first batch."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After its last batch; metric objects are whole."""

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before a batch."""

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After a batch."""

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Before a test."""

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """After a test; its values are known."""

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before its first batch."""

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After its last batch; metric objects are whole."""

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before a batch."""

    def on_test_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After a batch."""

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Before a prediction."""

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """After a prediction; its values are known."""

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before its first batch."""

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After its last batch; metric objects are whole."""

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before a batch."""

    def on_predict_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After a batch."""

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Before gradients are cleared."""

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Before backward."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """After backward."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are reduced and unscaled, not yet clipped."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add plain data to the dictionary."""

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The dictionary as it was saved."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """An error ends the run."""


def names_of(hooks: type) -> tuple[str, ...]:
    """The hooks that a class of hooks has."""
    return tuple(name for name in vars(hooks) if not name.startswith("_"))


ALL = tuple(dict.fromkeys((*names_of(CallbackHooks), *names_of(ModuleHooks))))


def overrides(owner: Any, name: str, *bases: type) -> bool:
    """Whether an object overrides a method, and has not the one that ``bases`` give it."""
    found = getattr(owner, name, None)
    function = getattr(found, "__func__", found)
    return callable(found) and not any(function is getattr(base, name, None) for base in bases)


WITHOUT_LOG = frozenset(
    [
        "setup",
        "teardown",
        "configure_model",
        "on_fit_start",
        "on_fit_end",
        "on_sanity_check_start",
        "on_sanity_check_end",
        "on_train_end",
        "on_validation_end",
        "on_test_end",
        "on_exception",
        "on_save_checkpoint",
        "on_load_checkpoint",
    ]
)
"""Where ``self.log`` is an error."""


class Hooks:
    """Calls each of Lightning's hooks: callbacks in their order, then the module.

    Attributes:
        under_way: The hook of ``WITHOUT_LOG`` that is called at the moment; empty outside of one.

    Args:
        trainer: What callbacks get.
        module: The ``LightningModule``.
        callbacks: The user's, and those that the module configures.
        bases: The classes whose own hooks do nothing.
    """

    def __init__(
        self, trainer: Any, module: Any, callbacks: Iterable[Any], bases: tuple[type, ...]
    ) -> None:
        self._trainer, self._module, self.under_way = trainer, module, ""
        watchers = list(callbacks)
        self._of_callbacks: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(one, name) for one in watchers if overrides(one, name, *bases)] for name in ALL
        }
        # Monitors see what the module logs in the same hook.
        monitors = [one for one in watchers if getattr(one, "monitors", False)]
        last = "on_train_epoch_end"
        self._of_monitors = [getattr(one, last) for one in monitors if overrides(one, last, *bases)]
        self._of_callbacks[last] = [h for h in self._of_callbacks[last] if h not in self._of_monitors]
        in_both = (name for name in (*ALL, "setup", "teardown") if overrides(module, name, *bases))
        self._of_module: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in in_both}

    def has(self, name: str) -> bool:
        """Whether anybody has this hook."""
        return bool(self._of_callbacks.get(name)) or name in self._of_module

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook of all; what the module's returned."""
        self.of_callbacks(name, *args)
        return self.of_module(name, *args)

    def of_callbacks(self, name: str, *args: Any) -> None:
        """Call it of the callbacks alone."""
        self.under_way = name if name in WITHOUT_LOG else ""
        for hook in self._of_callbacks.get(name, ()):
            hook(self._trainer, self._module, *args)
        self.under_way = ""

    def of_monitors(self, name: str) -> None:
        """Call ``on_train_epoch_end`` of those callbacks that watch a value."""
        for hook in self._of_monitors:
            hook(self._trainer, self._module)

    def of_module(self, name: str, *args: Any) -> Any:
        """Call it of the module alone."""
        hook = self._of_module.get(name)
        if hook is None:
            return None
        self.under_way = name if name in WITHOUT_LOG else ""
        found = hook(*args)
        self.under_way = ""
        return found
