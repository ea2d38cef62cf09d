"""What callbacks and modules may read, call and rely on: the trainer as they see it.

``Trainer`` has all of it, and verbs such as ``fit`` besides. Everything here is the same under every
strategy; what is marked "on all ranks" is to be called by all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Never, Protocol, TypeVar

from torch import Tensor

from ..durations import Cadence

T = TypeVar("T")


class Save(Protocol):
    """A checkpoint that is being written, or was."""

    @property
    def target(self) -> Path:
        """Its folder."""

    @property
    def error(self) -> Exception | None:
        """Why it could not be written; the same on all ranks. None while it is not known."""

    @property
    def committed(self) -> bool:
        """Whether it is known here to be written; other ranks may know it sooner or later."""

    def then(self, call: Callable[[], None]) -> None:
        """Call this once the checkpoint is committed, in the thread that wrote it; never if it failed."""

    def wait(self) -> None:
        """Wait until it is written, or has failed."""


class CheckpointWriter(Protocol):
    """Writes the checkpoints of the current run."""

    @property
    def seconds(self) -> float:
        """Seconds that training has waited for saves on this rank, since the fit began."""

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint of this session that a run can resume from, written or about to be."""

    def save(self, name: str, *, weights_only: bool, background: bool) -> Save:
        """Write ``checkpoints/<name>``; one that exists is not written again. On all ranks."""

    def prepare(self, weights_only: bool = False) -> None:
        """Prepare the memory of background saves, after the first step; it only saves time."""

    def wait(self) -> None:
        """Wait for the save that is being written, whatever becomes of it."""

    def roll_back(self, path: str | Path) -> None:
        """Take weights and moments back from a checkpoint. On all ranks, in ``on_step_boundary``."""

    def update(self, pointers: dict[str, str], dropped: Sequence[str]) -> None:
        """Write pointers (``latest``, ``best`` ...) and delete checkpoints; rank 0 does."""


class StepFacts(NamedTuple):
    """A step, as one rank knows it.

    Attributes:
        step: Optimizer steps done.
        samples: Its dataset indices over all ranks; empty where ranks do not know them.
        losses: This rank's losses with their weights: numbers, or scalars on the device.
        gradient_norm: Of its gradients before clipping, a scalar; None where it was not measured.
        sizes: The samples in each of this rank's micro-batches; 0: it only keeps the ranks in step.
    """

    step: int
    samples: Sequence[Any]
    losses: list[tuple[Any, Any]]
    gradient_norm: Any
    sizes: Sequence[int] = ()


class RanksView(Protocol):
    """This rank among the others, and what they do together: ``trainer.ranks``.

    Example:
        >>> trainer.ranks.on_rank_zero(lambda: "read once")
        'read once'
    """

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples this rank computes with: ``rank``, unless layers are split."""

    @property
    def data_world_size(self) -> int:
        """Among how many ranks a step's samples are divided; ranks that split each layer count once."""

    @property
    def tensor_rank(self) -> int:
        """The place of this rank among those that split each layer between them, from 0."""

    def barrier(self) -> None:
        """Wait for all ranks. On all ranks."""

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that rank ``source`` has, on every rank. On all ranks."""

    def all_reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        """``sum``, ``min`` or ``max`` over all ranks, the same result on each. On all ranks."""

    def all_gather(self, value: Any) -> list[Any]:
        """One value of every rank, in the order of ranks, on each. On all ranks."""

    def gather_data(self, value: Any) -> list[Any]:
        """One value of every data rank, in their order, on each. On all ranks."""

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank 0, on every rank; it is called there alone. On all ranks."""

    def main_process_first(self, per_node: bool = False) -> AbstractContextManager[None]:
        """What is inside runs on rank 0 while the others wait, then on the others. On all ranks."""


class CountersView(Protocol):
    """How far a run is, besides its steps and epochs: ``trainer.counters``.

    Example:
        >>> trainer.counters.samples, trainer.counters.skipped_steps
        (16, 0)
    """

    @property
    def samples(self) -> int:
        """Samples trained on over the whole run, all ranks."""

    @property
    def samples_in_epoch(self) -> int:
        """Samples of the current epoch that finished steps have used; 0 at its end."""

    @property
    def skipped_steps(self) -> int:
        """Steps without an update: not finite, overflowed under ``fp16``, or without a loss (None)."""

    def seconds(self) -> float:
        """Seconds of training, the same on all ranks: rank 0's clock, as of the last agreement."""

    def elapsed(self, unit: str) -> Fraction | float:
        """How much of the run is done: ``"st"`` steps, ``"ep"`` epochs and parts, ``"s"`` seconds."""

    def is_due(self, cadence: Cadence) -> bool:
        """Whether a cadence falls on this step boundary; for ``on_step_boundary``."""


class LoopView(Protocol):
    """The step, the epoch and the validation under way: ``trainer.loop``.

    Example:
        >>> class Short(Callback):
        ...     def on_step_end(self, trainer):
        ...         trainer.loop.end_epoch()
        >>> short = Trainer(max_epochs=2, callbacks=Short(), run_dir=None)
        >>> run = short.fit(Net(), train_loader)
        >>> short.global_step
        2
    """

    @property
    def is_between_steps(self) -> bool:
        """Whether the state is a finished step's, which a run can resume from; for ``on_exception``."""

    @property
    def sample_indices(self) -> list[Any]:
        """The dataset indices of this rank's batch in a validation, test or prediction; empty elsewhere."""

    @property
    def is_fit_validation(self) -> bool:
        """Whether the current validation is part of ``fit``: no sanity check, no call of ``validate``."""

    @property
    def data(self) -> dict[str, Any]:
        """The data of the fit as it was given, by ``"train"``, ``"val"``, or ``"val/NAME"`` of several."""

    @property
    def schedules(self) -> list[Any]:
        """The learning rate schedules: each has ``scheduler``, ``interval``, ``frequency``, ``monitor``."""

    @property
    def progress_bar_names(self) -> list[str]:
        """Full names of the values logged with ``prog_bar=True``."""

    @property
    def manual_optimization(self) -> Any:
        """What ``self.optimizers()`` and ``self.manual_backward(loss)`` of a module use.

        Raises:
            PacelineError: outside of a fit.
        """

    def optimizer_settings(self, *settings: str) -> dict[str, float]:
        """``"lr"``, ``"momentum"``, ``"weight_decay"`` of all parameter groups, by ``lr/<optimizer>``."""

    def step_facts(self) -> StepFacts:
        """What is known of the step under way on this rank; nothing is computed or waited for."""

    def step_loss(self) -> float:
        """The loss of the step under way, over its micro-batches and ranks. On all ranks.

        In ``on_before_optimizer_step``; an accelerator is waited for.
        """

    def skip_update(self) -> None:
        """Let the step under way end without an update. On all ranks, in ``on_before_optimizer_step``."""

    def end_epoch(self) -> None:
        """End the epoch after the step under way, like any other. To be called on all ranks."""

    def request_validation(self) -> None:
        """Validate after the step under way. To be called on all ranks."""

    def forward_training_data(self) -> None:
        """Run ``training_step`` on an epoch of training data, nothing of it logged. On all ranks."""

    def evaluation_of(self, dataloader: Any, name: str) -> Callable[[], dict[str, float] | None]:
        """What runs ``validation_step`` over further data, in ``on_step_boundary``. On all ranks.

        It returns the values, published as ``val/<name>/...``; None where a signal interrupted it.
        """


class TrainerView(Protocol):
    """The trainer, as hooks get it and as ``TrainModule.trainer`` gives it.

    Example:
        >>> class Best(Callback):
        ...     def on_validation_end(self, trainer: TrainerView) -> None:
        ...         self.loss = min(trainer.metrics["val/loss"], getattr(self, "loss", float("inf")))
        >>> trainer = Trainer(max_epochs=1, callbacks=Best(), progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
    """

    # -- parts ---------------------------------------------------------------------------------

    @property
    def ranks(self) -> RanksView:
        """This rank among the others, and what they do together: ``barrier``, ``broadcast`` ..."""

    @property
    def counters(self) -> CountersView:
        """Samples, skipped steps, seconds: how far the run is, besides steps and epochs."""

    @property
    def loop(self) -> LoopView:
        """The step, the epoch and the validation under way, and what may be asked of them."""

    @property
    def checkpoints(self) -> CheckpointWriter:
        """The checkpoints of the fit: what the ``Checkpoint`` callback writes through, and ``roll_back``.

        Raises:
            PacelineError: outside of a fit.
        """

    # -- where the run is ----------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""

    @property
    def stage(self) -> str:
        """``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``; "" between runs."""

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in the current epoch; None where the data has no length."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps until the limits on epochs and steps; None where that is unknown."""

    @property
    def max_epochs(self) -> int | None:
        """The limit on epochs; 1 where no limit was given."""

    # -- what is trained -----------------------------------------------------------------------

    @property
    def module(self) -> Any:
        """The ``TrainModule`` of the current run, or of the last one."""

    @property
    def strategy(self) -> Any:
        """The ``paceline.strategies.Strategy``: its ``device``, ``weights.full_gradients`` ..."""

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that ``configure_optimizers`` returned; none before they are built."""

    @property
    def lr_schedulers(self) -> list[Any]:
        """The learning rate schedulers that ``configure_optimizers`` returned."""

    @property
    def callbacks(self) -> Sequence[Any]:
        """All callbacks of the run, the default ones included."""

    # -- values --------------------------------------------------------------------------------

    @property
    def metrics(self) -> dict[str, float]:
        """The latest reduced values by full name, plain floats, the same on every rank."""

    def log(
        self,
        name: str,
        value: Any,
        *,
        prog_bar: bool = False,
        weight: Any = None,
        reduce: str = "mean",
        **unknown: Never,
    ) -> None:
        """Log a value, as ``TrainModule.log`` does."""

    def publish(self, values: dict[str, float]) -> None:
        """Write a row of values that are reduced already, at once. On all ranks, with the same values."""

    def require_metric(self, name: str, who: str) -> float:
        """The latest value of ``name``.

        Raises:
            PacelineError: when it was never logged; the message names ``who`` as needing it.
        """

    # -- stopping ------------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends here; None while it continues."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ends the run, as all ranks agreed."""

    def stop(self, why: str) -> None:
        """Ask the run to end at a step boundary all ranks agree on. On any rank."""

    # -- files and lines -----------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as config.yaml has it; secrets are masked."""

    @property
    def folder(self) -> Path | None:
        """The run folder; None before ``fit`` and where nothing is written."""

    @property
    def run(self) -> Any:
        """The ``paceline.Run`` as it is on the disk by now: its ``latest`` and ``best`` checkpoints."""

    def save_checkpoint(self, path: str | Path, weights_only: bool = False) -> None:
        """Write a checkpoint of the current fit into a new folder. On all ranks."""

    def log_line(self, text: str, *, console: bool = True) -> None:
        """A line for the console (rank 0) and log.txt; ``console=False``: for the log only."""
