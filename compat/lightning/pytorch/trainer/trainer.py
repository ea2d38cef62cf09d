"""``Trainer`` with Lightning's arguments and methods; ``paceline.Trainer`` does the work."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ..... import PacelineError
from ..... import Trainer as OurTrainer
from .....callbacks import Callback as OurCallback
from .....callbacks import GradientAccumulationScheduler, ModelSummary, Progress
from .....callbacks.batches.epoch_schedule import EpochSchedule
from .....strategies import Strategy
from .....trainer.utils.paths import as_path
from ...translation import arguments
from ...translation.adapter import adapt
from ...translation.checkpoint_file import has_weights, saved_folder, with_weights, write_by
from ...translation.data import DataAdapter
from ...translation.hooks import CallbackHooks, ModuleHooks, overrides
from ...translation.run_hooks import ClosingHooks, OpeningHooks
from ...translation.saved import Loaded
from ...translation.session import Session
from ..accelerators import Accelerator, name_of
from ..callbacks import Callback, ModelCheckpoint
from ..core import LightningDataModule, LightningModule
from ..loggers import Logger, TensorBoardLogger
from ..loggers.logger import DummyLogger
from ..plugins.io import written_io
from ..plugins.plugin import Plugin, arguments_of
from ..profilers import Profiler, profiler_of
from .evaluations import Evaluations
from .given import as_datamodule, as_list, check_kinds, make_room, training_data
from .last_checkpoint import resumed_from
from .states import TrainerFn
from .unsupported import check_module

_BASES = (LightningModule, LightningDataModule, Callback, CallbackHooks, ModuleHooks)


class Trainer(Evaluations):
    """Lightning's trainer, with all of its arguments.

    docs/migration/from-lightning.md has those that mean something else here.

    Args:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"``, ``"mps"``, or an object of ``accelerators``.
        strategy: ``"auto"``, a name, or an object of ``strategies``.
        devices: How many, which, or ``"auto"``.
        num_nodes: Machines.
        precision: ``"32-true"`` unless given.
        logger: One, several, True for TensorBoard, False for none.
        callbacks: One or several.
        fast_dev_run: A trial of one batch, or of so many.
        max_epochs: 1,000 where nothing else limits the run; -1: no limit.
        min_epochs: Train for so many at least.
        max_steps: Optimizer steps; -1: no limit.
        min_steps: Train for so many at least.
        max_time: A ``timedelta``, its arguments, or ``"DD:HH:MM:SS"``.
        limit_train_batches: So many, or this part of an epoch; so for the three that follow.
        limit_val_batches: Of each validation.
        limit_test_batches: Of a test.
        limit_predict_batches: Of a prediction.
        overfit_batches: Train and validate on so many batches of each, or this part, unshuffled.
        val_check_interval: Batches between validations, a part of an epoch, or a time.
        check_val_every_n_epoch: Epochs between validations; None: ``val_check_interval`` counts on.
        num_sanity_val_steps: Batches of validation before training; 2 unless given.
        log_every_n_steps: Steps between rows; 50 unless given.
        enable_checkpointing: Whether a ``ModelCheckpoint`` is added.
        enable_progress_bar: Whether a bar is shown.
        enable_model_summary: Whether the model is summarised.
        accumulate_grad_batches: Batches of an optimizer step.
        gradient_clip_val: The largest norm, or value, of gradients.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        deterministic: Have torch use deterministic algorithms.
        benchmark: ``torch.backends.cudnn.benchmark``.
        inference_mode: Accepted.
        use_distributed_sampler: Accepted: each rank has its part of the data.
        profiler: ``"simple"``, ``"advanced"``, ``"pytorch"`` or an object of ``profilers``: torch profiles
            steps 7 to 9, and the profiler what you name.
        detect_anomaly: torch's anomaly detection.
        barebones: No logger, bar, summary, checkpoint.
        plugins: Objects of ``plugins``: each stands for another argument, or for what is so anyway.
        sync_batchnorm: Statistics of batch norms over all ranks.
        reload_dataloaders_every_n_epochs: Make the loaders again.
        default_root_dir: Where ``lightning_logs`` lies; the current folder unless given.
        enable_autolog_hparams: Accepted.
        model_registry: None.
        **removed: Arguments of older versions, which are refused with the new ones.

    Attributes:
        ours: The ``paceline.Trainer`` that does the work.
        session: What is known of the module that runs, or ran last; None before the first.

    Raises:
        PacelineError: for arguments that have no counterpart.

    Example:
        >>> import paceline.compat.lightning as L
        >>> trainer = L.Trainer(max_epochs=2, accumulate_grad_batches=2, enable_progress_bar=False)
        >>> trainer.max_epochs, trainer.accumulate_grad_batches
        (2, 2)
    """

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        logger: Logger | Iterable[Logger] | bool | None = None,
        callbacks: list[Callback] | Callback | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | str | timedelta | dict[str, int] | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Profiler | str | None = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Plugin | str | list[Plugin | str] | None = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: str | Path | None = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        **removed: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in arguments.DEFAULTS}
        arguments.check_names(removed)
        profiled = profiler_of(None if barebones else profiler)
        given |= {"accelerator": name_of(accelerator), "profiler": profiled.ours}
        given |= {"callbacks": None, "logger": False if logger is False else None}
        given |= arguments_of(plugins) | arguments.overfitting(given)
        usual = logger in (None, True) and not barebones
        loggers = [TensorBoardLogger()] if usual else as_list(logger or None)
        loggers = [DummyLogger()] if loggers and fast_dev_run else loggers
        self.checkpoint_io = written_io(as_list(plugins))
        self._set_up(given | arguments.quick_run(given), as_list(callbacks), loggers, profiled)
        if benchmark is not None:
            torch.backends.cudnn.benchmark = bool(benchmark)

    def _set_up(
        self, given: dict[str, Any], callbacks: list[Any], loggers: list[Any], profiler: Profiler
    ) -> None:
        self.given, self.callbacks, self.loggers, self.profiler = given, callbacks, loggers, profiler
        check_kinds("logger", loggers, "objects of Logger, True or False", Logger)
        check_kinds("callbacks", callbacks, "objects of Callback", Callback, OurCallback)
        if given["enable_checkpointing"] is False and self.checkpoint_callbacks:
            raise PacelineError(
                "enable_checkpointing=False, and callbacks= has a ModelCheckpoint",
                code="conflicting-arguments",
                fix="take one of the two away",
            )
        if given["enable_checkpointing"] is not False and not self.checkpoint_callbacks:
            callbacks.append(ModelCheckpoint())
        callbacks.sort(key=lambda one: isinstance(one, ModelCheckpoint))
        self._explained: list[str] = []
        if arguments.has_bfloat16_instead(given):
            self.explain(f"precision={given['precision']!r} is bfloat16 on a CPU, as in Lightning")
        self.datamodule: Any = None
        self.loaded: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self.session: Session | None = None
        self._module: Any = None
        self._made_for: tuple[bool, bool, bool] | None = None
        self._built_with: list[int] = []
        self._place: dict[str, Any] = {}
        self.rule = arguments.rule_of(given)
        self._hooks = (OpeningHooks(not self.rule.validate_every), ClosingHooks())
        self.ours = self._make()
        for one in loggers:
            one.attach(self)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: what the trainer was given, and nothing of its runs."""
        return {name: vars(self)[name] for name in ("given", "callbacks", "loggers", "profiler")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(**state)

    # -- the run -------------------------------------------------------------------------------

    def fit(
        self,
        model: LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train.

        Args:
            model: The module.
            train_dataloaders: One, several, or a data module.
            val_dataloaders: One or several.
            datamodule: A ``LightningDataModule``.
            ckpt_path: ``"last"``, ``"best"``, ``"hpc"`` or the path of a checkpoint to resume from.
            weights_only: False: ``on_load_checkpoint`` gets objects of a ``.ckpt`` file, too, which runs
                code of theirs.

        Raises:
            PacelineError: for mistakes, before anything is computed where that is possible.
        """
        train_dataloaders, datamodule = as_datamodule(train_dataloaders, datamodule)
        self.loaded |= {"train_dataloader": train_dataloaders, "val_dataloader": val_dataloaders}
        adapter, data = self._prepare("fit", model, datamodule)
        if 0 in (self.max_epochs, self.given["max_steps"]):
            self.ours.log_line("nothing is trained: max_epochs or max_steps is 0")
            return
        assert self.session is not None
        self._ckpt_path, resume = resumed_from(self, ckpt_path, adapter)
        loads = Loaded(self._ckpt_path, weights_only, self.checkpoint_io)
        self.session.resumes = None if self._ckpt_path is None else loads
        loaders = training_data(self.given, train_dataloaders, val_dataloaders, data)
        self.session.place = self._place if resume is None else {}
        self._should_stop = False
        try:
            with torch.autograd.set_detect_anomaly(
                self.given["detect_anomaly"] or torch.is_anomaly_enabled()
            ):
                self.ours.fit(adapter, *loaders, resume=resume)
        finally:
            self._place = self.session.ended_at()
            self._should_stop = self.should_stop

    def save_checkpoint(
        self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a ``.ckpt`` file; on all ranks. What is at its path is replaced.

        A run resumes from a folder that the file names: in ``saved/`` of the run folder, or beside the file
        where there is no run folder. After a fit, the file names a copy of the last checkpoint where the
        weights are still those; else it has weights, hyperparameters and what hooks add alone.

        Args:
            filepath: Of the file.
            weights_only: Whether no run is to resume from it.
            storage_options: Given to a ``CheckpointIO`` of the user.

        Raises:
            PacelineError: before the first stage, and for an address.
        """
        session, target = self.session, as_path(filepath, "save_checkpoint")
        if session is None:
            raise PacelineError(
                "save_checkpoint writes the module that is trained, and no stage has begun",
                code="not-running",
                fix="call it after fit or in a hook; or torch.save(model.state_dict(), path)",
            )
        folder = saved_folder(self.ours.folder, target)
        self.ours.ranks.on_rank_zero(lambda: make_room(folder))
        in_fit = self.ours.stage == "fit"
        if in_fit:
            self.ours.save_checkpoint(folder, weights_only=bool(weights_only))
        else:
            session.content = None  # weights may be others than at the end of the fit
        content = session.content_at(self.ours)
        values = (content.of_weights() if weights_only else content).values
        if not in_fit:
            weights = self.ours.strategy.weights.full_tensors(session.adapter)
            values, latest = with_weights(values, weights), self.ours.run.latest
            resumes = not weights_only and latest is not None and self.is_global_zero
            if resumes and has_weights(latest, weights):
                shutil.copytree(latest, folder)
        written = partial(self._write, target, values, folder, bool(weights_only), storage_options)
        self.ours.ranks.on_rank_zero(written)

    def _write(
        self, target: Path, values: dict[str, Any], folder: Path, weights_only: bool, options: Any
    ) -> None:
        make_room(target)
        resumes = folder.exists() and not weights_only
        write_by(self.checkpoint_io, str(target), values, folder, resumes, options)
        if weights_only and folder.exists():
            shutil.rmtree(folder)

    def has_validation_data(self) -> bool:
        """Whether the fit was given validation data, or its module or data module makes them."""
        owners = (self.datamodule, self._module)
        return self.loaded.get("val_dataloader") is not None or any(
            overrides(one, "val_dataloader", *_BASES) for one in owners
        )

    def print(self, *values: Any, **options: Any) -> None:
        """Print on rank 0 only."""
        if self.is_global_zero:
            self.ours.log_line(" ".join(map(str, values)))

    def explain(self, text: str) -> None:
        """A line for the user, once, when the next stage begins."""
        if text not in self._explained:
            self._explained.append(text)

    # -- ours ----------------------------------------------------------------------------------

    def _prepare(self, name: str, model: Any, datamodule: Any) -> tuple[Any, Any]:
        if not isinstance(model, LightningModule):
            raise TypeError(f"`model` must be a `LightningModule`, got `{type(model).__qualname__}`")
        ignored = check_module(model, self.callbacks, _BASES)
        self._called = TrainerFn(name)
        configured = as_list(model.configure_callbacks())
        if name == "fit" and [*map(id, self.callbacks)] != self._built_with:
            self._made_for = None
        if self.session is None or self._module is not model or self._made_for is None:
            kinds = tuple(type(one) for one in configured)
            kept = [one for one in self.callbacks if not isinstance(one, kinds)]
            self.callbacks = sorted([*kept, *configured], key=lambda one: isinstance(one, ModelCheckpoint))
            self._open(name, model, bool(configured))
        assert self.session is not None
        data = None
        self.session.datamodule = self.datamodule = datamodule
        self.session.lines = [*self._explained, *ignored]
        if datamodule is not None:
            data = self.session.data = DataAdapter(datamodule, self)
        self.session.look_again([c for c in self.callbacks if isinstance(c, Callback)])
        self._hooks[0].attach(self.session)
        model._paceline_session = self.session
        for one in self.callbacks:
            vars(one).update(_paceline_session=self.session)
        return self.session.adapter, data

    def _open(self, name: str, model: LightningModule, again: bool) -> None:
        """Another module: its hooks, and our trainer for it where it has to be another one."""
        session = Session(self, model, [c for c in self.callbacks if isinstance(c, Callback)], _BASES)
        if self.session is not None:  # an evaluation of another module leaves the counters as they are
            session.take_counters(self.session)
        self.session, self._module = session, model
        manual = not model.automatic_optimization
        by_time = isinstance(self.rule.interval, timedelta)
        ends = overrides(model, "on_train_batch_start", *_BASES) and not by_time
        session.rule = None if self.rule.validate_every and not ends else self.rule
        wanted = (manual, session.clips_itself, session.rule is None)
        if again or (name == "fit" and wanted != self._made_for):
            self._made_for = wanted
            self._hooks[0].requests_validation = True
            self.ours = self._make()
        session.ours = self.ours
        for hooks in self._hooks:
            hooks.session = session
        self._hooks[0].attach(session)
        session.adapter = adapt(model, session)

    def _make(self) -> OurTrainer:
        """Our trainer, with Lightning's settings and callbacks."""
        given = self.given
        manual, own_clipping, plain = self._made_for or (False, False, bool(self.rule.validate_every))
        self._built_with = [*map(id, self.callbacks)]
        options = arguments.translated(given, manual=manual, own_clipping=own_clipping)
        if not plain:
            options["validate_every"] = None
        callbacks: list[Any] = [*self._hooks]
        for one in self.callbacks:
            callbacks += [one] if isinstance(one, OurCallback) else one.ours(self)
        self._steps = None
        if not manual and not any(isinstance(one, EpochSchedule) for one in callbacks):
            self._steps = GradientAccumulationScheduler(
                {0: options.pop("accumulate")}
            )  # hooks may set more
            callbacks.append(self._steps)
        bar, summary = options["progress"], given["enable_model_summary"] is not False
        if bar != summary and not any(isinstance(one, (Progress, ModelSummary)) for one in callbacks):
            options["progress"] = False
            callbacks += [Progress()] if bar else [ModelSummary()] if not given["barebones"] else []
        loggers: Any = [one.ours(self) for one in self.loggers]
        if given["logger"] is False or given["barebones"]:
            loggers = False
        options["checkpoint"] = False  # ModelCheckpoint is one of the callbacks
        return OurTrainer(callbacks=callbacks, loggers=loggers, **options)
