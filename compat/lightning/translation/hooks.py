"""Lightning's hooks: which of them a user's objects have, called in Lightning's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class ModuleHooks:
    """The hooks of a ``LightningModule``, with Lightning's arguments.

    Source: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#hooks
    """

    def configure_model(self) -> None: ...

    def on_fit_start(self) -> None: ...

    def on_fit_end(self) -> None: ...

    def on_train_start(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_train_epoch_start(self) -> None: ...

    def on_train_epoch_end(self) -> None: ...

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any: ...

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def on_validation_start(self) -> None: ...

    def on_validation_end(self) -> None: ...

    def on_validation_epoch_start(self) -> None: ...

    def on_validation_epoch_end(self) -> None: ...

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None: ...

    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_validation_model_eval(self) -> None: ...

    def on_validation_model_train(self) -> None: ...

    def on_validation_model_zero_grad(self) -> None: ...

    def on_test_start(self) -> None: ...

    def on_test_end(self) -> None: ...

    def on_test_epoch_start(self) -> None: ...

    def on_test_epoch_end(self) -> None: ...

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None: ...

    def on_test_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_test_model_eval(self) -> None: ...

    def on_test_model_train(self) -> None: ...

    def on_predict_start(self) -> None: ...

    def on_predict_end(self) -> None: ...

    def on_predict_epoch_start(self) -> None: ...

    def on_predict_epoch_end(self) -> None: ...

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None: ...

    def on_predict_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_predict_model_eval(self) -> None: ...

    def on_predict_model_train(self) -> None: ...

    def on_before_zero_grad(self, optimizer: Any) -> None: ...

    def on_before_backward(self, loss: Any) -> None: ...

    def on_after_backward(self) -> None: ...

    def on_before_optimizer_step(self, optimizer: Any) -> None: ...

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...


class CallbackHooks:
    """The hooks of a ``Callback``, with Lightning's arguments.

    Source: https://lightning.ai/docs/pytorch/stable/extensions/callbacks.html#callback-api
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None: ...

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None: ...

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None: ...

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None: ...

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None: ...

    def on_test_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_test_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_test_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None: ...

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_predict_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None: ...

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None: ...

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None: ...

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None: ...

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None: ...

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None: ...

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None: ...

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None: ...


def names_of(hooks: type) -> tuple[str, ...]:
    """The hooks that a class of hooks has."""
    return tuple(name for name in vars(hooks) if not name.startswith("_"))


ALL = tuple(dict.fromkeys((*names_of(CallbackHooks), *names_of(ModuleHooks))))


def overrides(owner: Any, name: str, *bases: type) -> bool:
    """Whether an object has a method of its own, and not one that ``bases`` give it."""
    found = getattr(owner, name, None)
    function = getattr(found, "__func__", found)
    return callable(found) and not any(function is getattr(base, name, None) for base in bases)


class Hooks:
    """Calls each of Lightning's hooks: callbacks in their order, then the module.

    Args:
        trainer: What callbacks get.
        module: The ``LightningModule``.
        callbacks: The user's, and those that the module configures.
        bases: The classes whose own hooks do nothing.
    """

    def __init__(
        self, trainer: Any, module: Any, callbacks: Iterable[Any], bases: tuple[type, ...]
    ) -> None:
        self._trainer, self._module = trainer, module
        watchers = list(callbacks)
        self._of_callbacks: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(one, name) for one in watchers if overrides(one, name, *bases)] for name in ALL
        }
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
        for hook in self._of_callbacks.get(name, ()):
            hook(self._trainer, self._module, *args)

    def of_module(self, name: str, *args: Any) -> Any:
        """Call it of the module alone."""
        hook = self._of_module.get(name)
        return None if hook is None else hook(*args)
