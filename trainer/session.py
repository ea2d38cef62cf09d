"""The run under way: where it is, and what callbacks and modules can ask of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callbacks import Callback, Logger
from ..callbacks.hooks import HookTable
from ..durations import Cadence
from ..errors import PacelineError, nearest
from ..strategies import Strategy
from .checkpoint.manager import Saving
from .checkpoint.writer import CheckpointWriter
from .data.feed import Feed
from .faults.nonfinite import Guard
from .faults.signals import SignalStop
from .loops.evaluation_loop import EvaluationLoop
from .loops.manual_optimizer import ManualOptimizer
from .loops.optimizers import Optimization
from .metrics.store import MetricStore
from .module import TrainModule
from .run.directory import RunLog
from .run.lock import FolderLock
from .run.run import Run
from .runtime.compilation import Compilation
from .state import TrainState

if TYPE_CHECKING:
    from .config.arguments import TrainerArguments

_ATTRIBUTE_PEERS = {
    "callback_metrics": "metrics",
    "logged_metrics": "metrics",
    "progress_bar_metrics": "metrics",
    "current_epoch": "epoch",
    "should_stop": 'stop("why")',
    "estimated_stepping_batches": "total_steps",
    "lightning_module": "module",
    "model": "module",
    "log_dir": "folder",
    "is_main_process": "is_global_zero",
    "global_rank": "rank",
    "train": "fit(module, dataloader)",
    "evaluate": "validate(module, dataloader)",
    "save_model": "save_checkpoint(path)",
}


class Session(Saving):
    """The Trainer without its verbs: state, metrics, folder, stopping, saving.

    Attributes:
        settings: The validated arguments.
        metrics: The latest reduced values by full name, plain floats, the same on every rank.
        folder: The run folder; None before ``fit`` and where nothing is written.
        stage: ``fit``, ``validate``, ``test`` or ``predict``; "" between runs.
        sanity_checking: True during the validation before training.
        max_epochs, max_steps: The limits in force; one epoch where none was given.
        share: What ``manual_backward`` multiplies a loss by, so that samples count alike on all ranks.
        redone_step: The step whose validation was done again; its checkpoint is of before that.
        fit_number: Which ``fit`` of this process the one under way is, from 1.
        first_weights: A checksum of parts of the weights that the module came with.
        ranks_in_turn: For how many ranks this one process computes, one after the other (a replay).
        keeps_nothing: Whether the run leaves no file behind (a replay).
    """

    def __init__(self, settings: TrainerArguments, strategy: Strategy, callbacks: list[Callback]) -> None:
        from .config.arguments import elapsed_limit

        self.settings, self.callbacks = settings, callbacks
        self.max_steps = 1 if settings.fast_dev_run else settings.max_steps
        no_limit = settings.max_epochs is self.max_steps is settings.max_time is None
        self.max_epochs = 1 if no_limit else settings.max_epochs
        self._max_seconds = elapsed_limit(settings.max_time)
        self._writers = [c.write for c in callbacks if isinstance(c, Logger)]
        self.datamodule: Any = None
        self.fit_number = self.first_weights = 0
        self.ranks_in_turn, self.keeps_nothing = 1, False
        self.name = settings.name or ""
        self.hooks: HookTable
        self.signals: SignalStop
        self.guard: Guard | None = None
        self.compilation: Compilation | None = None
        self.stage = ""
        self._module: TrainModule | None = None
        self.use(strategy)

    def use(self, strategy: Strategy) -> None:
        """Compute with this strategy from now on."""
        self.strategy = strategy
        strategy.say = self.say
        self.reset()

    def begin(self, stage: str, module: TrainModule, datamodule: Any) -> None:
        """A stage of a run begins."""
        self._module, self.stage, self.datamodule = module, stage, datamodule
        self.forget_stop()

    def reset(self) -> None:
        """Begin a new run: counters at zero, no folder, nothing logged."""
        self.state = TrainState()
        self.writer = CheckpointWriter(self.strategy, self.on_rank_zero)
        self.lock = FolderLock()
        self.run_log = RunLog()
        self.metrics: dict[str, float] = {}
        self.folder: Path | None = None
        self.optimization = Optimization()
        self.manual_optimizers: list[ManualOptimizer] = []
        self.steps_per_epoch: int | None = None
        self.validation: EvaluationLoop | None = None
        self.feeds: list[Feed] = []
        self.train_store = self.store = MetricStore("train", self.say, self.strategy)
        self.sanity_checking = False
        self.redone_step = -1
        self.share = 1.0
        self.agreed_seconds = 0.0
        self.forget_stop()
        self._clock_start: float | None = None

    @property
    def module(self) -> TrainModule:
        """The module of the run under way, or of the last one."""
        if self._module is None:
            raise PacelineError("the trainer has no module yet", fix="trainer.fit(module, ...)")
        return self._module

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self.state.global_step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self.state.epoch

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps until the limits on epochs and steps; None where that is unknown."""
        limits = [] if self.max_steps is None else [self.max_steps]
        if self.max_epochs is not None and self.steps_per_epoch is not None:
            limits.append(self.max_epochs * self.steps_per_epoch)
        return min(limits, default=None)

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends here; None while it goes on."""
        state = self.state
        if self.stop_asked is not None:
            return self.stop_asked
        if state.validating:  # that comes first
            return None
        if self.max_steps is not None and state.global_step >= self.max_steps:
            return f"max_steps={self.max_steps} reached"
        if self.max_epochs is not None and state.epoch >= self.max_epochs:
            return f"max_epochs={self.max_epochs} reached"
        if self._max_seconds is not None and self.agreed_clock() >= self._max_seconds:
            return f"max_time={self.settings.max_time} reached"
        return None

    @property
    def done(self) -> bool:
        """Whether there is any reason to stop."""
        return self.stop_reason is not None

    @property
    def place(self) -> str:
        """The step under way, for messages."""
        return f"step {self.state.global_step + 1}, epoch {self.state.epoch + 1}"

    @property
    def best(self) -> Path | None:
        """The best checkpoint of the run, where one is monitored."""
        return Run(self.folder).best if self.folder else None

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint of the run."""
        return Run(self.folder).latest if self.folder else None

    @property
    def validation_counts(self) -> bool:
        """Whether the validation under way is one of training, not a sanity check or a call by itself."""
        return self.stage == "fit" and not self.sanity_checking

    @property
    def shown_metrics(self) -> list[str]:
        """Full names of the values logged with ``prog_bar=True``."""
        stores = [self.train_store] + ([self.validation.store] if self.validation else [])
        return [name for store in stores for name in store.shown]

    def __getattr__(self, name: str) -> Any:
        ours = _ATTRIBUTE_PEERS.get(name)
        hint = f"; it is called {ours} here" if ours else ""
        if not ours and not name.startswith("_"):
            near = nearest(name, [n for n in dir(type(self)) if not n.startswith("_")])
            hint = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"Trainer has no attribute {name!r}{hint}")

    def _refuse_should_stop(self, value: Any) -> None:
        raise AttributeError('Trainer has no attribute "should_stop"; call trainer.stop("why")')

    should_stop = property(None, _refuse_should_stop)

    # -- time and stopping ---------------------------------------------------------------------

    def clock(self) -> float:
        """Seconds of training, earlier sessions of a resumed run included."""
        if self._clock_start is None:
            return self.state.elapsed
        return self.state.elapsed + time.perf_counter() - self._clock_start

    def start_clock(self) -> None:
        """Training time runs from here."""
        self._clock_start = time.perf_counter()

    def stop_clock(self) -> None:
        """Training time stands still from here."""
        self.state.elapsed, self._clock_start = self.clock(), None

    def is_due(self, cadence: Cadence) -> bool:
        """Whether a cadence falls on this step boundary; for ``on_step_boundary``."""
        state = self.state
        ended = state.position == 0
        step = self.steps_per_epoch or 1 if ended else state.global_step - state.epoch_start
        return cadence.due(state.global_step, state.epoch - ended, step, ended, self.agreed_clock)

    # -- values --------------------------------------------------------------------------------

    def log(self, name: str, value: Any, **options: Any) -> None:
        """``TrainModule.log``, for callbacks."""
        self.module.log(name, value, **options)

    @contextmanager
    def logging_to(self, store: MetricStore) -> Iterator[None]:
        """What is logged inside goes to ``store``."""
        before, self.store = self.store, store
        try:
            yield
        finally:
            self.store = before

    def publish(self, values: dict[str, float]) -> None:
        """Make reduced values the latest ones and write them as a row."""
        if not values:
            return
        self.metrics.update(values)
        if self.compilation is not None:
            self.compilation.report(self.place)
        if self.is_global_zero:
            state = self.state
            row = {
                "step": state.global_step,
                "epoch": state.epoch,
                "time": round(self.clock(), 3),
                "samples": state.samples,
            }
            for write in self._writers:
                try:
                    write(row | values)
                except OSError as error:  # a full disk is no reason to lose the run
                    self.say(f"warning: values could not be logged: {error}")

    def call_and_flush(self, hook_name: str) -> None:
        """Call a hook; what each function of it logs is published behind it."""
        for hook in self.hooks[hook_name]:
            hook(self)
            self.publish(self.train_store.take_window())

    def validate_during_fit(self) -> bool:
        """A validation of the run under way, its values published; False where a signal cut it short."""
        assert self.validation is not None
        return self.validation.run(self.publish)

    def require_metric(self, name: str, who: str) -> float:
        """The latest value of ``name``.

        Raises:
            PacelineError: when it was never logged; ``who`` asks for it.
        """
        if name not in self.metrics:
            raise PacelineError(
                f"{who} watches {name!r}, which was not logged",
                where=f"after step {self.global_step}",
                got=f"logged: {', '.join(self.metrics) or 'nothing'}",
                meant=nearest(name, self.metrics),
            )
        return self.metrics[name]

    def say(self, text: str) -> None:
        """A line for the console (rank 0) and log.txt."""
        self.run_log.say(text, console=self.is_global_zero)

    # -- files ---------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain data for config.yaml."""
        trainer = {name: _shown(getattr(self.settings, name)) for name in type(self.settings).model_fields}
        module = self.module
        return {
            "name": self.name,
            "trainer": trainer
            | {"strategy": self.strategy.name, "precision": self.strategy.precision.name},
            "module": {
                "class": f"{type(module).__module__}:{type(module).__qualname__}",
                "hparams": {name: _shown(value) for name, value in module.hparams.items()},
            },
        }

    def data_fingerprint(self) -> dict[str, Any]:
        """What tells the training data from other data."""
        return self.feeds[0].fingerprint() if self.feeds else {}

    def feed_state(self) -> dict[str, Any]:
        """The position of a source that keeps its own."""
        return self.feeds[0].state_dict()

    def load_feed_state(self, state: dict[str, Any]) -> None:
        """Take back what ``feed_state`` gave."""
        self.feeds[0].load_state_dict(state)


def _shown(value: Any) -> Any:
    """Plain data as it is, anything else by its type's name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (float, int)):  # numpy's, and enumerations
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    return str(value) if isinstance(value, (str, Path, timedelta)) else type(value).__name__
