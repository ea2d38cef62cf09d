"""The base of loggers with Lightning's methods, and ours that do the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from ..... import callbacks as ours
from .....callbacks.loggers.logger import values_of
from .....trainer.checkpoint.files.json_codec import is_plain
from .....trainer.run.config_file import plain_data
from .....trainer.utils.secrets import masked
from ...translation.copies import state_without
from ..utilities.rank_zero import rank


def rank_zero_experiment(function: Callable[..., Any]) -> Callable[..., Any]:
    """For ``experiment`` of a logger: what it returns on rank 0, and elsewhere what takes any call."""

    @wraps(function)
    def experiment(self: Any) -> Any:
        return function(self) if rank() == 0 else DummyExperiment()

    return experiment


class DummyExperiment:
    """Takes any call, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Logger:
    """Subclass it: ``log_metrics`` gets each row, on rank 0.

    Source: https://lightning.ai/docs/pytorch/stable/extensions/logging.html#make-a-custom-logger
    """

    _run: Any = None
    _of_the_run: tuple[str, ...] = ()
    """What copies do not have, beside the trainer."""

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: no trainer, and nothing that is open."""
        return state_without(self, "_run", *self._of_the_run)

    def ours(self, trainer: Any) -> Any:
        """The logger of ``paceline`` that does the work."""
        return _Passing(self)

    def attach(self, trainer: Any) -> None:
        """Take the trainer that logs here."""
        self._run = trainer

    def begin(self, trainer: Any) -> None:
        """A stage begins; on all ranks, with the ``paceline.Trainer``."""

    def link(self, trainer: Any, hparams: dict[str, Any]) -> None:
        """The fit has a run folder; on rank 0, with the module's hyperparameters."""

    @property
    def name(self) -> str | None:
        """The name of the experiment."""
        return self._run.ours.name if self._run is not None else None

    @property
    def version(self) -> Any:
        """The number of the run."""
        folder = None if self._run is None else self._run.ours.folder
        return None if folder is None else Path(folder).name

    @property
    def log_dir(self) -> str | None:
        """The folder of the run."""
        folder = None if self._run is None else self._run.ours.folder
        return None if folder is None else str(folder)

    @property
    def save_dir(self) -> str | None:
        """Where runs are written."""
        return None if self._run is None else str(self._run.default_root_dir)

    @property
    def root_dir(self) -> str | None:
        """The folder of all runs of this name."""
        return None if self.log_dir is None else str(Path(self.log_dir).parent)

    @property
    def experiment(self) -> Any:
        """The client of what is logged to, where there is one."""
        return None

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Values to write at once, as they are."""
        if self._run is not None:
            self._run.ours.publish({_full(name): float(value) for name, value in metrics.items()})

    def log_evaluation(self, metrics: dict[str, float], step: int) -> None:
        """What a test or validation outside of a fit has found; on rank 0."""
        if type(self).log_metrics is not Logger.log_metrics:
            self.log_metrics(metrics, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Accepted: the run's configuration has the module's arguments."""

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Accepted: no graph is written."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Accepted."""

    def save(self) -> None:
        """Accepted: rows are written as they come."""

    def finalize(self, status: str) -> None:
        """The run is over: ``"success"`` or ``"failed"``."""


class DummyLogger(DummyExperiment, Logger):
    """A logger that writes nothing, and takes any call: that of ``fast_dev_run``."""

    experiment = DummyExperiment()
    name = version = ""
    log_dir = save_dir = root_dir = None

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Nothing is written."""


def plain_hparams(params: Any) -> dict[str, Any]:
    """The plain data of a mapping or namespace, without secrets."""
    given = params if isinstance(params, Mapping) else vars(params)
    kept = {key: value for key, value in given.items() if is_plain(value)}
    return masked(plain_data(kept))  # type: ignore[no-any-return]


def lightning_row(run: Any, row: dict[str, float]) -> dict[str, float] | None:
    """A row with Lightning's names and steps, ``step`` and ``epoch`` last; None without values for them.

    Args:
        run: The trainer of this package.
        row: As a logger of ``paceline`` gets it; in the main thread, when it is written.
    """
    step, every = int(row["step"]), run.log_every_n_steps
    named = run.session.values.named(values_of(row), with_steps=bool(every) and step % every == 0)
    if not named:
        return None
    counted = step - (run.ours.stage == "fit" and step > 0)  # Lightning counts it when it has validated
    return {**named, "epoch": row["epoch"], "step": counted}


def prefixed(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values by their names with a logger's prefix, if it has one."""
    return {f"{prefix}-{name}" if prefix else name: value for name, value in metrics.items()}


def _full(name: str) -> str:
    return name if "/" in name else f"logged/{name}"


class LightningRows(ours.Logger):
    """In front of a logger: it gets rows with Lightning's names and steps.

    What our loop publishes in parts, the means of an evaluation or a training epoch and then what the hooks
    of its end log, is one row, as under Lightning.

    Attributes:
        given: The logger as the user made it.
    """

    background = False
    first_step = 0
    given: Logger
    _held: dict[str, float] | None = None
    _status = "success"

    def write(self, row: dict[str, float]) -> None:
        run = self.given._run
        found = lightning_row(run, row)
        if found is None:
            return
        if self._held is not None and self._held["step"] == found["step"]:
            found = self._held | found
            self._held = None
        self.release()
        if run.session.is_evaluating or any(name.endswith("_epoch") for name in row):
            self._held = found
            run.session.at_the_end.append(self.release)
        else:
            self.write_row(found)

    def release(self) -> None:
        """All parts of the last row are there."""
        held, self._held = self._held, None
        if held is not None:
            self.write_row(held)

    def write_row(self, row: dict[str, float]) -> None:
        """Write a row that is whole."""
        super().write(row)  # type: ignore[safe-super]

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        self._status = "failed"

    def on_teardown(self, trainer: Any, stage: str) -> None:
        if trainer.is_global_zero:
            self.release()
        super().on_teardown(trainer, stage)
        status, self._status = self._status, "success"
        if trainer.is_global_zero:
            self.given.finalize(status)


class _Passing(LightningRows):
    """Rows for a logger that users have written."""

    def __init__(self, given: Logger) -> None:
        self.given = given

    @property
    def state_key(self) -> str:
        return type(self.given).__name__

    def on_fit_start(self, trainer: Any) -> None:
        if trainer.is_global_zero:
            hparams = self.given._run.session.logged_hparams
            if hparams is not None:
                self.given.log_hyperparams(hparams)
            self.given.log_graph(self.given._run.lightning_module)
            self.given.save()

    def write_row(self, row: dict[str, float]) -> None:
        self.given.log_metrics({name: row[name] for name in row if name != "step"}, int(row["step"]))

    def on_fit_end(self, trainer: Any) -> None:
        if trainer.is_global_zero:
            self.given.save()
