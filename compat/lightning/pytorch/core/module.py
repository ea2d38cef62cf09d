"""``LightningModule``: what users subclass, with Lightning's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..... import PacelineError
from .....trainer.batch_hooks import BatchHooks
from ...translation.copies import state_without
from ...translation.data_methods import DataMethods
from ...translation.hooks import ModuleHooks
from ...translation.hyperparameters import HyperparametersMixin
from ...translation.optimizer import LightningOptimizer
from .weights import Weights

T = TypeVar("T", bound="LightningModule")


class LightningModule(HyperparametersMixin, DataMethods, ModuleHooks, Weights, BatchHooks, nn.Module):
    """Lightning's module: steps, optimizers, hooks. ``Trainer`` of this package trains it.

    Source: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html

    Attributes:
        automatic_optimization: Set it to False to step optimizers in ``training_step``.
        example_input_array: Kept for your own use.
        strict_loading: Set it to False where ``state_dict`` gives some of the weights alone.

    Example:
        >>> import paceline.compat.lightning as L
        >>> class Line(L.LightningModule):
        ...     def __init__(self, rate=0.1):
        ...         super().__init__()
        ...         self.save_hyperparameters()
        ...         self.layer = nn.Linear(2, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        ...         self.log("train_loss", loss, prog_bar=True)
        ...         return loss
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)
        >>> trainer = L.Trainer(max_epochs=1, enable_progress_bar=False, logger=False)
        >>> trainer.fit(Line(), train_loader)
        >>> sorted(trainer.callback_metrics)
        ['train_loss']
    """

    automatic_optimization: bool = True
    example_input_array: Any = None
    strict_loading: bool = True
    allow_zero_length_dataloader_with_multiple_devices: bool = False
    prepare_data_per_node: bool = True
    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"
    _paceline_session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer."""
        return state_without(self, "_paceline_session")

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool | None = None, assign: bool = False
    ) -> Any:
        """As torch's, but that ``strict`` is ``strict_loading`` unless given."""
        return super().load_state_dict(
            state_dict, self.strict_loading if strict is None else strict, assign
        )

    # -- the run -------------------------------------------------------------------------------

    @property
    def trainer(self) -> Any:
        """The trainer that the module was given to.

        Raises:
            RuntimeError: before that.
        """
        if self._paceline_session is None:
            raise RuntimeError(f"{type(self).__name__} is not attached to a `Trainer`.")
        return self._paceline_session.trainer

    @property
    def _automatic_optimization(self) -> bool:
        return self.automatic_optimization

    @_automatic_optimization.setter
    def _automatic_optimization(self, value: bool) -> None:
        self.automatic_optimization = value

    @property
    def fabric(self) -> None:
        """No Fabric runs the module."""

    @property
    def _paceline_adapter(self) -> Any:
        if self._paceline_session is None or self._paceline_session.adapter is None:
            raise PacelineError(
                "no Trainer runs this module", code="not-running", fix="call it in a step or a hook"
            )
        return self._paceline_session.adapter

    @property
    def current_epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._paceline_session.trainer.current_epoch if self._paceline_session else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self._paceline_session.trainer.global_step if self._paceline_session else 0

    @property
    def global_rank(self) -> int:
        """The number of this process among all."""
        return self._paceline_session.trainer.global_rank if self._paceline_session else 0

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return self._paceline_session.trainer.local_rank if self._paceline_session else 0

    @property
    def device(self) -> torch.device:
        """The device of the first parameter; the CPU where there is none."""
        first = next(self.parameters(), None)
        return first.device if first is not None else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first parameter that is of floating point."""
        return next(
            (p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype()
        )

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def logger(self) -> Any:
        """The trainer's first logger; None without one."""
        return self._paceline_session.trainer.logger if self._paceline_session else None

    @property
    def loggers(self) -> list[Any]:
        """All loggers of the trainer."""
        return self._paceline_session.trainer.loggers if self._paceline_session else []

    def print(self, *values: Any, **options: Any) -> None:
        """Print on rank 0 only."""
        if self._paceline_session is None:
            print(*values, **options)
        else:
            self._paceline_session.trainer.print(*values, **options)

    # -- values --------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value, as Lightning's ``log``. Values are always reduced over all ranks.

        Args:
            name: Its name, also in ``callback_metrics``.
            value: A scalar, or a torchmetrics object.
            prog_bar: Show it on the progress bar.
            logger: False is explained once: every value goes to the loggers.
            on_step: Whether a step's value counts; None: in training steps.
            on_epoch: Whether the epoch's mean counts; None: everywhere else.
            reduce_fx: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``.
            enable_graph: Accepted; values are detached.
            sync_dist: Accepted; always so.
            sync_dist_group: Accepted; all ranks take part.
            add_dataloader_idx: Add ``/dataloader_idx_<n>`` where several dataloaders are evaluated.
            batch_size: What the value counts in a mean; the samples of the batch unless given.
            metric_attribute: Accepted; objects are found by themselves.
            rank_zero_only: Accepted; values are the same on all ranks.

        Raises:
            PacelineError: for a reduction of your own, and for what is no scalar.
        """
        if self._paceline_session is None or self._paceline_session.trainer.given["barebones"]:
            return
        options = {
            "prog_bar": prog_bar,
            "logger": logger is not False,
            "on_step": on_step,
            "on_epoch": on_epoch,
            "reduce_fx": reduce_fx,
            "add_dataloader_idx": add_dataloader_idx,
            "batch_size": batch_size,
        }
        if isinstance(value, Mapping) and not hasattr(value, "compute"):
            raise PacelineError(
                f"log({name!r}): a mapping is not a scalar",
                code="not-loggable",
                fix="self.log_dict(mapping)",
            )
        self._paceline_session.values.log(self._paceline_session.adapter, name, value, options)

    def log_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:
        """``log`` each item, with the arguments of ``log``."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The value of every rank, stacked along a new first dimension; one rank's is its own."""
        if isinstance(data, Mapping):
            return {key: self.all_gather(value, group, sync_grads) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return type(data)(self.all_gather(value, group, sync_grads) for value in data)
        if self._paceline_session is None or self._paceline_session.ours.world_size == 1:
            return data
        ours, tensor = self._paceline_session.ours, torch.as_tensor(data, device=self.device)
        gather = ours.strategy.collectives.gather_with_gradients if sync_grads else ours.ranks.gather_data
        return torch.stack(gather(tensor))

    # -- what users write ----------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx)``: the loss, a mapping with ``loss``, or None to skip the batch."""
        raise NotImplementedError

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx, dataloader_idx)``: log values."""
        raise NotImplementedError

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx, dataloader_idx)``: log values."""
        raise NotImplementedError

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx, dataloader_idx)``: the prediction; ``self(batch)`` unless written."""
        return self(args[0] if args else kwargs["batch"])

    def configure_callbacks(self) -> Any:
        """Callbacks that the trainer gets for this module."""
        return []

    def configure_optimizers(self) -> Any:
        """Optimizers and schedulers, in any of Lightning's shapes.

        Raises:
            PacelineError: where the module has none.
        """
        raise PacelineError(
            f"{type(self).__name__} has no configure_optimizers",
            code="method-missing",
            fix="return torch.optim.Adam(self.parameters()) in it; or --optimizer=Adam of LightningCLI",
        )

    # -- optimization --------------------------------------------------------------------------

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or the list of them."""
        session = self._paceline_adapter.session
        if self._paceline_adapter.automatic_optimization:
            found: list[Any] = [LightningOptimizer(one) for one in session.ours.optimizers]
        else:
            found = session.manual_optimizers((self.toggle_optimizer, self.untoggle_optimizer))
        if not use_pl_optimizer:
            found = [getattr(one, "optimizer", one) for one in found]
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """The scheduler, or the list of them; None without one."""
        found = [config.scheduler for config in self._paceline_adapter.configs]
        return found[0] if len(found) == 1 else (found or None)

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """``loss.backward()`` under the run's precision; ``retain_graph=True`` keeps the graph."""
        adapter = self._paceline_adapter
        adapter.session.hooks.call("on_before_backward", loss)
        self.backward(loss, *args, **kwargs)
        adapter.session.hooks.call("on_after_backward")

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of a loss. Called by the loop, and by ``manual_backward``."""
        self._paceline_adapter.go_backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Compute gradients for this optimizer's parameters alone, until ``untoggle_optimizer``."""
        self._paceline_adapter.toggle_optimizer(getattr(optimizer, "optimizer", optimizer))

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Take ``toggle_optimizer`` back."""
        self._paceline_adapter.untoggle_optimizer(optimizer)

    @contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """Inside, only this optimizer's parameters get gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer; without values, by the trainer's."""
        trainer = self.trainer
        value = trainer.gradient_clip_val if gradient_clip_val is None else gradient_clip_val
        by_value = (gradient_clip_algorithm or trainer.gradient_clip_algorithm) == "value"
        if value:
            optimizer = getattr(optimizer, "optimizer", optimizer)
            clip = (None, float(value)) if by_value else (float(value), None)
            self._paceline_adapter.session.ours.strategy.clip(optimizer, *clip)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Called with reduced gradients before an update; override it to clip in your own way."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler; ``metric`` is None where it watches none."""
        scheduler.step(*(() if metric is None else (metric,)))

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """One update; the closure computes the gradients."""
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Clear the gradients."""
        optimizer.zero_grad()
