"""What a run trains: an ``nn.Module`` with steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ..callbacks.hooks import Hooks
from ..common.argument_checks import refuse_unknown
from ..errors import PacelineError, nearest
from ..other_trainers import names_in
from ..other_trainers.attributes import RECORDED
from .batch_hooks import BatchHooks
from .hparams import bound_arguments
from .module_parts.media_logs import MediaLogs
from .module_parts.model_steps import ModelSteps
from .module_parts.read_only import refusing_assignments
from .module_parts.recorded import Recorded
from .module_parts.refused import Refused
from .module_parts.user_methods import UserMethods
from .plain_names import PlainNames

if TYPE_CHECKING:
    from ..callbacks.loggers.media import Media
    from ..callbacks.trainer_view import TrainerView
    from .metrics.logger import MetricLogger

T = TypeVar("T", bound="TrainModule")

_LOG_ARGUMENTS = ("prog_bar", "weight", "reduce")


@refusing_assignments
class TrainModule(UserMethods, Hooks, PlainNames, BatchHooks, MediaLogs, Recorded):
    """Subclass it, write ``training_step`` and ``configure_optimizers``, and give it to ``Trainer.fit``.

    Attributes:
        automatic_optimization: Set it to False to call ``manual_backward`` and ``optimizer.step``
            yourself in ``training_step``; needed for several optimizers.

    Example:
        >>> class Line(TrainModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(2, 1)
        ...     def training_step(self, batch):
        ...         return nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> run = Trainer(max_epochs=1, progress=False, run_dir=None).fit(Line(), train_loader)
    """

    automatic_optimization: bool = True
    _trainer: TrainerView | None = None
    _logger: MetricLogger | None = None
    # Names of others that are used where no run is there to explain an error.
    save_hyperparameters = Refused("save_hyperparameters is not needed here", RECORDED)
    fit = Refused("a module has no 'fit': a Trainer trains it", "Trainer(...).fit(module, loader)")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments of the outermost constructor, for ``hparams``."""
        module = super().__new__(cls)
        object.__setattr__(module, "_hparams", bound_arguments(cls, module, args, kwargs))
        return module

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer, even while a run is under way."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_trainer", "_logger")}

    @property
    def trainer(self) -> TrainerView:
        """The trainer of the current run.

        Raises:
            PacelineError: outside fit, validate, test and predict.
        """
        if self._trainer is None:
            raise PacelineError(
                f"{type(self).__name__}.trainer exists only while a Trainer runs the module",
                code="not-running",
                fix="use it in a step or a hook, not in __init__",
            )
        return self._trainer

    @property
    def device(self) -> torch.device:
        """The device of the first parameter; the CPU where there is none."""
        first = next(self.parameters(), None)
        return first.device if first is not None else torch.device("cpu")

    @property
    def global_step(self) -> int:
        """Optimizer steps done; 0 outside a run."""
        return self._trainer.global_step if self._trainer else 0

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0; 0 outside a run."""
        return self._trainer.epoch if self._trainer else 0

    def log(
        self,
        name: str,
        value: Any,
        *,
        prog_bar: bool = False,
        weight: float | Tensor | None = None,
        reduce: str = "mean",
        **unknown: Any,
    ) -> None:
        """Log a value: a number, a tensor of one element, or a torchmetrics object you updated.

        Args:
            name: Gets its phase in front unless it has a "/": ``loss`` is ``val/loss`` in validation.
            value: A scalar, reduced over the batches and over all ranks.
            prog_bar: Show it on the progress bar.
            weight: What it counts in a mean; the samples of the batch unless given.
            reduce: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``.
            **unknown: No others are taken; the error names the right arguments.

        Raises:
            PacelineError: for a value that is not a scalar, and for unknown arguments.

        Example:
            >>> class Logged(Net):
            ...     def training_step(self, batch):
            ...         self.log("target", batch[1].mean())
            ...         return super().training_step(batch)
            >>> run = trainer.fit(Logged(), train_loader)
            >>> "train/target" in trainer.metrics
            True
        """
        if unknown:
            refuse_log_arguments(name, unknown, self._logger)
        logger = self._logger
        if logger is not None:  # outside a run a step can be called, and logs nothing
            logger.current.log(name, value, prog_bar, weight, reduce)

    def log_dict(self, values: Any, **options: Any) -> None:
        """``log`` each item of a mapping or of a torchmetrics collection.

        Args:
            values: Scalars by name.
            **options: As ``log`` takes them, for all of the values.

        Example:
            >>> class Logged(Net):
            ...     def validation_step(self, batch):
            ...         self.log_dict({"least": batch[1].min(), "first": batch[1][0]}, reduce="min")
            >>> sorted(trainer.validate(Logged(), val_loader))
            ['val/first', 'val/least']
        """
        for name, value in values.items():
            self.log(name, value, **options)

    def _log_media(self, name: str, kind: type[Media], make: Callable[[], Media]) -> None:
        if self._logger is not None:
            self._logger.log_media(name, kind, make)

    def print(self, *values: Any) -> None:
        """Print on rank 0 only, above a progress bar.

        Args:
            *values: As the builtin ``print`` takes them, separated by spaces.

        Example:
            >>> Net().print("weights of", 2, "layers")
            weights of 2 layers
        """
        text = " ".join(map(str, values))
        if self._trainer is None:
            print(text)
        else:
            self._trainer.log_line(text)

    def all_gather(self, value: Tensor, sync_grads: bool = False) -> Tensor:
        """The value of every rank, stacked along a new first dimension. To be called on all ranks.

        Args:
            value: A tensor of the same shape on all ranks.
            sync_grads: Gradients flow back to each rank's value, from the losses of all ranks: for a
                contrastive loss over the samples of all ranks, each of which must have as many and use the
                result in its loss. Else the values are detached.

        Returns:
            A tensor of shape (data ranks, ...), the rest as ``value`` has it; the same on every rank.
            Data ranks are all ranks, but for those that split each layer between them, which count once.

        Example:
            >>> class Losses(Net):
            ...     def on_fit_end(self, trainer):
            ...         self.ranks = self.all_gather(torch.tensor(trainer.rank))
            >>> run = trainer.fit(module := Losses(), train_loader)
            >>> module.ranks
            tensor([0])
        """
        if sync_grads:
            return torch.stack(self.trainer.strategy.collectives.gather_with_gradients(value))
        return torch.stack(self.trainer.ranks.gather_data(value))

    def optimizers(self) -> Any:
        """The optimizer, or the list of them, for manual optimization.

        Example:
            >>> class Manual(Net):
            ...     automatic_optimization = False
            ...     def training_step(self, batch):
            ...         self.manual_backward(super().training_step(batch))
            ...         self.optimizers().step()
            ...         self.optimizers().zero_grad()
            >>> run = trainer.fit(Manual(), train_loader)
        """
        found = self.trainer.loop.manual_optimization.optimizers
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """The scheduler, or the list of them, for manual optimization; None where there is none.

        Example:
            >>> class Printed(Net):
            ...     def on_fit_end(self, trainer):
            ...         self.found = self.lr_schedulers()
            >>> run = trainer.fit(module := Printed(), train_loader)
            >>> module.found is None
            True
        """
        found = self.trainer.lr_schedulers
        return found[0] if len(found) == 1 else (found or None)

    def manual_backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """``loss.backward()`` under the run's precision; gradients are averaged over the ranks then.

        Every rank calls it equally often. ``self.trainer.strategy.synchronise_gradients(False)`` before it
        leaves gradients to the next call after ``synchronise_gradients(True)``, or to ``optimizer.step()``.
        A loss that is NaN or infinite makes its gradients so: ``optimizer.step()`` goes by ``nonfinite``.

        Args:
            loss: A tensor of one element.
            retain_graph: Keep the graph, to go backward from another loss over it.

        Raises:
            PacelineError: under automatic optimization.

        Example:
            >>> class Manual(Net):
            ...     automatic_optimization = False
            ...     def training_step(self, batch):
            ...         self.optimizers().zero_grad()
            ...         self.manual_backward(super().training_step(batch))
            ...         self.optimizers().step()
            >>> run = trainer.fit(Manual(), train_loader)
        """
        self.trainer.loop.manual_optimization.backward(loss, retain_graph)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Compute gradients for this optimizer's parameters alone, until ``untoggle_optimizer``.

        Example:
            >>> class Manual(Net):
            ...     automatic_optimization = False
            ...     def training_step(self, batch):
            ...         optimizer = self.optimizers()
            ...         self.toggle_optimizer(optimizer)
            ...         self.manual_backward(super().training_step(batch))
            ...         optimizer.step()
            ...         optimizer.zero_grad()
            ...         self.untoggle_optimizer(optimizer)
            >>> run = trainer.fit(Manual(), train_loader)
        """
        self.trainer.loop.manual_optimization.toggle(optimizer)

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Take ``toggle_optimizer`` back; its example shows both."""
        self.trainer.loop.manual_optimization.untoggle()

    @staticmethod
    def of(
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Callable[..., Any] | None = None,
        scheduler: Any = None,
        metrics: Mapping[str, Any] | None = None,
        weight: Callable[[Any], Any] | None = None,
    ) -> TrainModule:
        """A module to train, of a model that exists already.

        A batch is ``(inputs, targets)``, several inputs first, or a mapping whose targets are ``labels``,
        ``label``, ``targets`` or ``target`` and whose other items are the model's named arguments.

        Args:
            model: Called with the inputs. An output with ``logits``, as of transformers, stands for them.
            loss: Called with ``(predictions, targets)``. None: the model is called with the whole batch and
                returns its loss, as transformers models do with labels.
            optimizer: Called with the parameters to train: ``partial(torch.optim.AdamW, lr=1e-3)``, or with
                the module where its first argument is called ``module``. Needed by ``fit`` alone.
            scheduler: Called with the optimizer, then stepped once an epoch:
                ``partial(CosineAnnealingLR, T_max=10)``; or one of ``paceline.schedules``, or its name.
            metrics: By name, logged in training, validation and test: functions of ``(predictions,
                targets)`` that return a scalar, or torchmetrics objects, of which each phase has a copy.
            weight: Called with the batch; what its loss counts: the tokens, where the loss is a mean over
                them. The samples of the batch unless given.

        Example:
            >>> from functools import partial
            >>> mse = nn.functional.mse_loss
            >>> module = TrainModule.of(nn.Linear(2, 1), mse, partial(torch.optim.SGD, lr=0.1))
            >>> run = trainer.fit(module, train_loader, val_loader)
        """
        return ModelModule(model, loss, optimizer, scheduler, metrics, weight)

    @classmethod
    def load_from_checkpoint(cls: type[T], path: Any, *, strict: bool = True, **arguments: Any) -> T:
        """Build the module from a checkpoint's ``hparams`` and load its weights, on the CPU.

        Args:
            path: A checkpoint folder, or a run folder (its best checkpoint, else its latest). Weights that
                others wrote are read too: a Lightning ``.ckpt``, a folder of Accelerate's, a bare state
                dict, pickled or as safetensors; nothing in a pickle is run.
            strict: Whether both must have the same names and shapes. False, for a changed head, say, loads
                what fits; one warning lists what was missing, left over, or had another shape. A
                constructor's own ``strict`` keeps the recorded value.
            **arguments: Constructor arguments that replace the recorded ones, or were not plain data.

        Returns:
            The module, on the CPU.

        Raises:
            PacelineError: for a damaged checkpoint, missing arguments, and weights of another model; with
                ``strict=False`` where no weight fits.

        Example:
            >>> module = Net.load_from_checkpoint(run.latest)
            >>> module.layer.weight.shape
            torch.Size([1, 2])
        """
        from .checkpoint.weights import build_from_checkpoint

        return build_from_checkpoint(cls, path, arguments, strict)


class ModelModule(ModelSteps, TrainModule):
    """What ``TrainModule.of`` returns."""


def refuse_log_arguments(name: Any, unknown: dict[str, Any], logger: MetricLogger | None) -> None:
    """Refuse arguments that ``log`` does not take, with what stands for them where it was called.

    Args:
        name: Of the value.
        unknown: The arguments.
        logger: Where it was to be logged; None outside a run.

    Raises:
        PacelineError: one report of all of them.
    """
    epoch = "remove it: the mean of the epoch is always logged, in training as <name>_epoch"
    if logger is not None and isinstance(name, str):
        full = logger.current.full_name(name)
        mean, suffix = ("the data", "") if logger.is_evaluating else ("the epoch", "_epoch")
        epoch = f"remove it: the mean over {mean} is always logged, as {full}{suffix}"
    refuse_unknown("log", unknown, _LOG_ARGUMENTS, {**names_in("log"), "on_epoch": epoch})


def configure(module: TrainModule) -> None:
    """Call ``configure_model`` on the meta device, where it was not called yet."""
    if is_overridden(module, "configure_model") and not vars(module).get("_configured"):
        with torch.device("meta"):
            module.configure_model()
        vars(module)["_configured"] = True


def is_overridden(module: TrainModule, name: str) -> bool:
    """Whether the user's class writes this step."""
    return getattr(type(module), name) is not getattr(TrainModule, name) or name in vars(module)


def missing_method(module: TrainModule, name: str) -> str:
    """That a method is not written, with the one that may have been meant to be it."""
    kind = type(module)
    own = [one for one in dir(kind) if not hasattr(TrainModule, one) and callable(getattr(kind, one))]
    ends = "_step" if name.endswith("_step") else ""
    like = nearest(name, [one for one in own if one.endswith(ends)])
    text = f"{kind.__name__} has no {name}"
    return text if like is None else f"{text}, and its {like} is never called by a Trainer"
