"""The trainer as callbacks, modules and users see it: where the run is, its values, its files, the ranks.

This is what ``paceline.callbacks.TrainerView`` promises. ``Trainer`` adds the verbs.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn

from ..callbacks.trainer_view import CountersView, LoopView, RanksView
from ..errors import PacelineError, nearest
from ..other_trainers import called_here
from .loop_controls import LoopControls
from .module import TrainModule, refuse_log_arguments
from .utils.paths import as_path

if TYPE_CHECKING:
    from ..callbacks import Callback
    from ..strategies import Strategy
    from ..strategies.ranks.collectives import Collectives
    from .checkpoint.manager import CheckpointManager
    from .config.arguments import TrainerArguments
    from .counters import RunCounters
    from .loops.context import RunContext
    from .loops.fit_context import FitContext
    from .run.run import Run


class RunView:
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
        self._loop = LoopControls(self)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Trainer has no attribute {name!r}{attribute_hint(name, type(self))}")

    def _refuse_should_stop(self, value: Any) -> NoReturn:
        raise AttributeError('Trainer has no attribute "should_stop"; call trainer.stop("why")')

    should_stop = property(None, _refuse_should_stop, doc="Lightning's way to stop a run; here ``stop``.")

    # -- parts ---------------------------------------------------------------------------------

    @property
    def ranks(self) -> Collectives:
        """This rank among the others, and what they do together: ``barrier``, ``broadcast`` ..."""
        return self._run.ranks

    @property
    def counters(self) -> RunCounters:
        """Samples, skipped steps, seconds: how far the run is, besides steps and epochs."""
        return self._run.counters

    @property
    def loop(self) -> LoopControls:
        """The step, the epoch and the validation under way, and what may be asked of them."""
        return self._loop

    @property
    def checkpoints(self) -> CheckpointManager:
        """The checkpoints of the fit: what the ``Checkpoint`` callback writes through, and ``roll_back``.

        Raises:
            PacelineError: outside of a fit.
        """
        return self._fit_for("checkpoints").checkpoints

    # -- where the run is ----------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""
        return self._run.ranks.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._run.ranks.world_size

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self._run.ranks.is_global_zero

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

    # -- what is trained -----------------------------------------------------------------------

    @property
    def module(self) -> TrainModule:
        """The module of the current run, or of the last one.

        Raises:
            PacelineError: before the first.
        """
        if self._module is None:
            raise PacelineError(
                "the trainer has no module yet", code="not-running", fix="trainer.fit(module, ...)"
            )
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
    def run(self) -> Run:
        """The run as it is on the disk by now: ``run.latest`` and ``run.best`` are its checkpoints."""
        from .run.run import Run

        return Run(self.folder)

    def save_checkpoint(self, path: str | Path, weights_only: bool = False) -> None:
        """Write a checkpoint of the current fit into a new folder. To be called on all ranks.

        Args:
            path: The folder to be written; its parent is made if it does not exist.
            weights_only: Without what resuming needs: for evaluation and for use elsewhere.

        Raises:
            PacelineError: when the folder exists, when it cannot be written, or no fit is running.

        Example:
            >>> class AtTheEnd(Callback):
            ...     def on_fit_end(self, trainer):
            ...         trainer.save_checkpoint("last", weights_only=True)
            >>> run = Trainer(max_steps=1, callbacks=AtTheEnd(), loggers=False).fit(Net(), train_loader)
            >>> module = Net.load_from_checkpoint("last")
        """
        if self._stage != "fit":
            raise PacelineError(
                "save_checkpoint writes the current fit, and there is none",
                code="not-running",
                fix="call it in a hook; afterwards run.latest of the Run that fit returned is the newest "
                "checkpoint, and export(folder) writes the weights",
            )
        self._fit_for("save_checkpoint").checkpoints.save_to(as_path(path, "save_checkpoint"), weights_only)

    def export(self, folder: str | Path, submodule: str | None = None, merged: bool = False) -> Path:
        """Write the module's weights for use without paceline: ``model.safetensors`` and ``config.json``.

        Of a submodule that is a Hugging Face model, ``config.json`` is its own, so that ``from_pretrained``
        reads the folder. Of a ``PeftModel`` the adapter is written, as ``PeftModel.from_pretrained`` reads
        it. Sharded weights are gathered first.

        Args:
            folder: Made if it does not exist; files of the same names are replaced.
            submodule: Export only this part, by its dotted name; names in the file begin there.
            merged: Of a ``PeftModel`` whose base is of transformers: the base with the adapter merged into
                it, computed in float32 and written in the base's dtype.

        Returns:
            ``folder``.

        Raises:
            PacelineError: when there is no such submodule, or nothing in it to merge.

        Example:
            >>> sorted(path.name for path in trainer.export("exported").iterdir())
            ['config.json', 'model.safetensors']
        """
        from .checkpoint.export import export

        folder = as_path(folder, "export")
        said = export(self.module, self.strategy, folder, submodule, merged)
        if said:
            self.log_line(f"{folder}: {said}")
        return folder

    def log_line(self, text: str, *, console: bool = True) -> None:
        """A line for the console (rank 0) and log.txt.

        Args:
            text: One or more lines.
            console: False: for the log only.

        Example:
            >>> trainer.log_line("the teacher's weights are frozen")
        """
        self._run.directory.log_line(text, console=console)

    def _fit_for(self, what: str) -> FitContext:
        if self._fit is None:
            raise PacelineError(
                f"{what}: no fit is running", code="not-running", fix="use it in a step or a hook of fit"
            )
        return self._fit


_PARTS = {"ranks": RanksView, "counters": CountersView, "loop": LoopView}


def attribute_hint(name: str, owner: type) -> str:
    """The end of a message about an attribute that does not exist: the name that was meant, if any."""
    ours = called_here("trainer.", name) or _in_a_part(name)
    if ours:
        return f"; use {ours}"
    near = None if name.startswith("_") else nearest(name, [n for n in dir(owner) if n[0] != "_"])
    return f"; did you mean {near}?" if near else ""


def _in_a_part(name: str) -> str | None:
    """The part of the trainer that has the attribute, and how it is called."""
    for part, promised in _PARTS.items():
        found = vars(promised).get(name)
        if found is not None and name[0] != "_":
            return f"{part}.{name}{_call_of(found)}"
    return None


def _call_of(found: Any) -> str:
    """The parentheses of a method, with the arguments that it needs; nothing for a property."""
    if not inspect.isfunction(found):
        return ""
    parameters = [*inspect.signature(found).parameters.values()][1:]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return f"({', '.join(needed)})"
