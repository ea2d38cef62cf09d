"""How many samples a device computes at once before its memory runs out: a search by trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import COUNT, COUNT_OR_NONE, PART, SOME_STEPS, check_arguments
from ...errors import PacelineError
from ...strategies.launch.job_notes import uncaught_errors_shortened
from ...trainer.data.sources import as_datamodule
from ...trainer.loops.lifecycle import check_stage
from ...trainer.on_ranks import on_ranks
from ...trainer.tuning.batch_trials import BatchSizeTrial, Trials
from .figure import drawn

if TYPE_CHECKING:
    from ...trainer.module import TrainModule
    from ...trainer.trainer import Trainer


@dataclass(frozen=True)
class BatchSizeSearch:
    """What ``find_batch_size`` found.

    Attributes:
        module: The class of the module.
        tried: The batch sizes in the order in which they were tried.
        suggestion: The largest that fits, less the headroom; None where none fits.
    """

    module: str
    tried: tuple[BatchSizeTrial, ...]
    suggestion: int | None

    @property
    def _fails(self) -> int | None:
        return min((trial.batch_size for trial in self.tried if not trial.fits), default=None)

    def __str__(self) -> str:
        if self.suggestion is None:
            return f"no batch size is suggested for {self.module}: not even 1 sample fits"
        fits = max(trial.batch_size for trial in self.tried if trial.fits)
        beyond = "nothing larger was tried" if self._fails is None else f"{self._fails} does not"
        return f"batch size {self.suggestion} for {self.module}: {fits} fits, and {beyond}"

    def plot(self, path: str | Path) -> None:
        """Draw samples per second and peak memory over the batch size into a PNG.

        Args:
            path: The file; its folder is made if it does not exist.
        """
        fitting = sorted((trial for trial in self.tried if trial.fits), key=lambda trial: trial.batch_size)
        sizes = [trial.batch_size for trial in fitting]
        with drawn(path, f"batch size of {self.module}") as axes:
            speeds = [trial.samples_per_second for trial in fitting]
            lines = axes.plot(sizes, speeds, marker=".", label="samples/s")
            peaks = [(t.batch_size, t.peak_bytes / 1e9) for t in fitting if t.peak_bytes is not None]
            if peaks:
                memory = axes.twinx()
                lines += memory.plot(*zip(*peaks, strict=True), "C1.--", label="peak memory")
                memory.set_ylabel("peak memory in GB")
                memory.set_ylim(bottom=0)
            if self._fails is not None:
                label = f"{self._fails} does not fit"
                lines.append(axes.axvline(self._fails, color="tab:red", linestyle=":", label=label))
            if self.suggestion is not None:
                label = f"suggestion {self.suggestion}"
                lines.append(axes.axvline(self.suggestion, color="tab:green", label=label))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_ylim(bottom=0)
            axes.set_xlabel("batch size of one rank")
            axes.set_ylabel("samples/s of one rank")
            axes.legend(handles=lines, loc="upper left")


@uncaught_errors_shortened()
@on_ranks
def find_batch_size(
    trainer: Trainer,
    module: TrainModule,
    train_dataloader: Any = None,
    datamodule: Any = None,
    *,
    start: int | None = None,
    most: int = 65536,
    steps: int = 3,
    headroom: float = 0.0,
) -> BatchSizeSearch:
    """Train copies of ``module`` with larger and larger batches; find the largest that fits the memory.

    The batch size is doubled until one does not fit; then the interval between is halved. It decides
    the samples in a step, and so the numbers, unless ``global_batch_size`` is set: set that too.
    Weights, random generators and data with a ``state_dict`` stay as they are. Nothing is written.

    On several ranks each searches by itself on its device, and what fits all of them counts: a rank
    that runs out of memory in a common step would leave the others waiting. What the strategy needs or
    saves there is not measured: leave ``headroom`` for it where the model is replicated, and take the
    result as a lower bound where it is sharded.

    Args:
        trainer: Its arguments are the copy's; it stays as it is.
        module: Stays as it is.
        train_dataloader: A DataLoader with a ``batch_size``.
        datamodule: A ``DataModule``, as ``fit`` takes it.
        start: The first batch size to try; None: the loader's own.
        most: The largest to try; no more than the dataset has, and one rank's part of
            ``global_batch_size``. On a CPU set it: too large a batch may end the process.
        steps: Optimizer steps of each trial; of two micro-batches where the trainer has several.
        headroom: The part of the largest batch size that fits by which the suggestion is smaller.

    Returns:
        What was tried, with memory and speed; ``suggestion``; ``plot(path)`` draws it.

    Raises:
        PacelineError: for wrong arguments and for data whose batch size cannot be changed.

    Example:
        >>> from paceline.tools import find_batch_size
        >>> search = find_batch_size(trainer, Net(), train_loader)
        >>> [trial.batch_size for trial in search.tried], search.suggestion
        ([4, 8, 16], 16)
    """
    check_arguments(
        "find_batch_size",
        start=(start, COUNT_OR_NONE),
        most=(most, COUNT),
        steps=(steps, SOME_STEPS),
        headroom=(headroom, PART),
    )
    if start is not None and start > most:
        raise PacelineError(
            "find_batch_size begins at start and takes no batch size above most",
            code="invalid-value",
            got=f"start={start}, most={most}",
            allowed="start <= most",
        )
    check_stage("find_batch_size", module, trainer.stage)
    settings, whole = trainer.settings, trainer.settings.global_batch_size
    several = module.automatic_optimization and (settings.accumulate > 1 or whole is not None)
    most = most if whole is None else min(most, -(-whole // trainer.ranks.data_world_size))
    data = as_datamodule(train_dataloader, datamodule)
    trials = Trials(trainer, module, data, steps, start, most, accumulate=2 if several else 1)
    tried: list[BatchSizeTrial] = []
    fits = 0
    fails: int | None = None
    while trials.size is None or trials.size > fits:
        trial = trials.run()
        tried += [] if trial is None else [trial]
        if trial is not None and trial.fits:
            fits = trial.batch_size
        else:
            fails = trials.size
        trials.size = min(2 * fits, trials.most) if fails is None else (fits + fails) // 2
    suggestion = max(int(fits * (1 - headroom)), 1) if fits else None
    return BatchSizeSearch(type(module).__name__, tuple(tried), suggestion)
