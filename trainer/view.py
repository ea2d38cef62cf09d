"""The trainer as callbacks, modules and users see it: where the run is, its values, its files, the ranks.

This is what ``paceline.callbacks.TrainerView`` promises. ``Trainer`` adds the verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn

from ..errors import PacelineError
from .config.peer_names import attribute_hint
from .media_logs import MediaLogs
from .module import TrainModule, refuse_log_arguments
from .rank_view import RankView
from .utils.paths import as_path

if TYPE_CHECKING:
    from ..callbacks import Callback
    from ..callbacks.loggers.media import Media
    from ..durations import Cadence
    from ..strategies import Strategy
    from .config.arguments import TrainerArguments
    from .loops.context import RunContext
    from .loops.fit_context import FitContext


class RunView(RankView, MediaLogs):
    """Reads and calls the parts of the current run, or of the last one.

    Args:
        run: The parts that live from one ``fit`` to the next.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._fit: FitContext | None = None
        self._module: TrainModule | None = None
        self._datamodule: Any = None
        self._stage = ""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Trainer has no attribute {name!r}{attribute_hint(name, type(self))}")

    def _refuse_should_stop(self, value: Any) -> NoReturn:
        raise AttributeError('Trainer has no attribute "should_stop"; call trainer.stop("why")')

    should_stop = property(None, _refuse_should_stop, doc="Lightning's way to stop a run; here ``stop``.")

    # -- where the run is ----------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``; "" between runs."""
        return self._stage

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self._run.state.global_step

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._run.state.epoch

    @property
    def samples(self) -> int:
        """Samples trained on over the whole run, all ranks."""
        return self._run.state.samples

    @property
    def skipped_steps(self) -> int:
        """Steps without an update.

        A loss or gradient was not finite, scaled gradients overflowed (``precision="fp16"``), or there was
        no loss (None).
        """
        state = self._run.state
        return state.skipped_steps + state.overflowed_steps + state.steps_without_loss

    @property
    def samples_in_epoch(self) -> int:
        """Samples of the current epoch that finished steps have used; 0 at its end."""
        return self._run.state.position

    @property
    def sample_indices(self) -> list[Any]:
        """The dataset indices of this rank's batch in a validation, test or prediction; empty elsewhere.

        Example:
            >>> class Printed(Callback):
            ...     def on_predict_step_end(self, trainer, output, batch, batch_idx):
            ...         print(batch_idx, trainer.sample_indices)
            >>> predicts = Trainer(callbacks=Printed(), progress=False, run_dir=None)
            >>> outputs = predicts.predict(Net(), val_loader)
            0 [0, 1, 2, 3]
            1 [4, 5, 6, 7]
            2 [8, 9, 10, 11]
            3 [12, 13, 14, 15]
        """
        return list(self._run.place.indices())

    @property
    def is_between_steps(self) -> bool:
        """Whether the state is a finished step's, which a run can resume from; for ``on_exception``."""
        return self._stage == "fit" and self._run.place.between_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in the current epoch; None where the data has no length."""
        return self._run.limits.steps_in(self.epoch)

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps until the limits on epochs and steps; None where that is unknown."""
        return self._run.limits.total_steps

    @property
    def max_epochs(self) -> int | None:
        """The limit on epochs; 1 where no limit was given."""
        return self._run.limits.max_epochs

    @property
    def max_steps(self) -> int | None:
        """The limit on optimizer steps."""
        return self._run.limits.max_steps

    def seconds(self) -> float:
        """Seconds of training, the same on all ranks: rank 0's clock, as of the last agreement.

        Example:
            >>> trainer.seconds() > 0
            True
        """
        return self._run.stop.seconds()

    def elapsed(self, unit: str) -> Fraction | float:
        """How much of the run is done, in a unit of durations; the same on all ranks at step boundaries.

        Args:
            unit: ``"st"`` optimizer steps, ``"ep"`` epochs and parts of one where its length is known,
                ``"s"`` seconds of training.

        Example:
            >>> trainer.elapsed("st"), trainer.elapsed("ep")
            (4, Fraction(1, 1))
        """
        state = self._run.state
        if unit == "s":
            return self.seconds()
        if unit == "st":
            return state.global_step
        length = self._run.limits.steps_in(state.epoch)
        return state.epoch + Fraction(state.global_step - state.epoch_start, length or 1) * bool(length)

    def is_due(self, cadence: Cadence) -> bool:
        """Whether a cadence falls on this step boundary; for ``on_step_boundary``.

        Example:
            >>> from paceline.durations import Cadence, Duration
            >>> trainer.global_step, trainer.is_due(Cadence(Duration.parse("2st"), None))
            (4, True)
        """
        return cadence.due(self._run.state.at_boundary(self._run.limits), self.seconds)

    # -- what is trained -----------------------------------------------------------------------

    @property
    def module(self) -> TrainModule:
        """The module of the current run, or of the last one.

        Raises:
            PacelineError: before the first.
        """
        if self._module is None:
            raise PacelineError("the trainer has no module yet", fix="trainer.fit(module, ...)")
        return self._module

    @property
    def settings(self) -> TrainerArguments:
        """The validated arguments."""
        return self._run.settings

    @property
    def strategy(self) -> Strategy:
        """Where the run computes."""
        return self._run.strategy

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that ``configure_optimizers`` returned; none before they are built."""
        return [] if self._fit is None else self._fit.optimization.optimizers

    @property
    def lr_schedulers(self) -> list[Any]:
        """The learning rate schedulers that ``configure_optimizers`` returned."""
        return [] if self._fit is None else [s.scheduler for s in self._fit.optimization.schedules]

    @property
    def callbacks(self) -> list[Callback]:
        """All callbacks of the run, the default ones included."""
        return self._run.callbacks

    # -- values --------------------------------------------------------------------------------

    @property
    def metrics(self) -> dict[str, float]:
        """The latest reduced values by full name, plain floats, the same on every rank."""
        return self._run.logger.latest

    @property
    def progress_bar_names(self) -> list[str]:
        """Full names of the values logged with ``prog_bar=True``."""
        stores = [self._run.logger.train]
        if self._fit is not None and self._fit.validation is not None:
            stores.append(self._fit.validation.store)
        return [name for store in stores for name in store.shown]

    @property
    def is_fit_validation(self) -> bool:
        """Whether the current validation is part of ``fit``: no sanity check, no call of ``validate``."""
        return self._stage == "fit" and self._run.logger.publishes

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
        """Log a value, as ``TrainModule.log`` does, with the same arguments.

        Example:
            >>> class Rate(Callback):
            ...     def on_step_end(self, trainer):
            ...         trainer.log("rate", trainer.optimizers[0].param_groups[0]["lr"])
            >>> run = Trainer(max_steps=1, callbacks=Rate(), loggers=False).fit(Net(), train_loader)
        """
        if unknown:
            refuse_log_arguments(name, unknown, self._run.logger)
        self._run.logger.log(name, value, prog_bar, weight, reduce)

    def _log_media(self, name: str, kind: type[Media], make: Callable[[], Media]) -> None:
        self._run.logger.log_media(name, kind, make)

    def publish(self, values: dict[str, float]) -> None:
        """Write a row of values that are reduced already, at once. On all ranks, with the same values.

        Example:
            >>> trainer.publish({"eval/bleu": 0.31})
            >>> trainer.metrics["eval/bleu"]
            0.31
        """
        self._run.logger.publish(values)

    def require_metric(self, name: str, who: str) -> float:
        """The latest value of ``name``.

        Raises:
            PacelineError: when it was never logged; the message names ``who`` as needing it.

        Example:
            >>> loss = trainer.require_metric("val/loss", who="my scheduler")
        """
        return self._run.logger.require(name, who)

    # -- stopping ------------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends here; None while it continues."""
        return self._run.stop.reason

    @property
    def interrupted(self) -> bool:
        """Whether a signal ends the run, as all ranks agreed."""
        return self._run.stop.interrupted

    def stop(self, why: str) -> None:
        """Ask the run to end at a step boundary all ranks agree on; the first reason given is kept.

        Example:
            >>> class Enough(Callback):
            ...     def on_step_end(self, trainer):
            ...         trainer.stop("one step is enough")
            >>> run = Trainer(max_epochs=9, callbacks=Enough(), loggers=False).fit(Net(), train_loader)
            >>> run.latest.name
            'step-00000001'
        """
        self._run.stop.request(why)

    # -- files and lines -----------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as config.yaml has it; secrets are masked.

        Example:
            >>> trainer.config["module"]["hparams"], trainer.config["trainer"]["precision"]
            ({}, '32')
        """
        from .run.config_file import run_config

        run = self._fit or self._run  # a fit that is resumed keeps its seed
        return run_config(self.name, run.settings, self.strategy, self.module)

    @property
    def name(self) -> str:
        """The name of the run: the folder is ``run_dir/<name>/<n>``."""
        return self._run.directory.name

    @property
    def folder(self) -> Path | None:
        """The run folder; None before ``fit`` and where nothing is written."""
        return self._run.directory.path

    @property
    def best(self) -> Path | None:
        """The best checkpoint of the run, where one is monitored."""
        from .run.run import Run

        return Run(self.folder).best if self.folder else None

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint of the run."""
        from .run.run import Run

        return Run(self.folder).latest if self.folder else None

    def export(self, folder: str | Path, submodule: str | None = None) -> Path:
        """Write the module's weights for use without paceline: ``model.safetensors`` and ``config.json``.

        Of a submodule that is a Hugging Face model, ``config.json`` is its own, so that ``from_pretrained``
        reads the folder. Of a ``PeftModel`` the adapter is written, as ``PeftModel.from_pretrained`` reads
        it. Sharded weights are gathered first.

        Args:
            folder: Made if it does not exist; files of the same names are replaced.
            submodule: Export only this part, by its dotted name; names in the file begin there.

        Returns:
            ``folder``.

        Raises:
            PacelineError: when there is no such submodule.

        Example:
            >>> sorted(path.name for path in trainer.export("exported").iterdir())
            ['config.json', 'model.safetensors']
        """
        from .checkpoint.export import export

        return export(self.module, self.strategy, as_path(folder, "export"), submodule)

    def log_line(self, text: str, *, console: bool = True) -> None:
        """A line for the console (rank 0) and log.txt.

        Args:
            text: One or more lines.
            console: False: for the log only.

        Example:
            >>> trainer.log_line("the teacher's weights are frozen")
        """
        self._run.directory.log_line(text, console=console)
