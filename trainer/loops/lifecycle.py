"""What surrounds every run: its place among the ranks, the one report of an error, and teardown always."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ...callbacks.hooks import HookTable
from ...errors import PacelineError
from ...faultpoints import faultpoint
from ...strategies import Environment, Precision, Strategy, choose_strategy, start_ranks
from ..faults.signals import SignalStop
from ..faults.stop import Agreement
from ..faults.watchdog import Watchdog, deadlines
from ..module import TrainModule, configure
from ..runtime.compilation import Compilation
from . import fit_setup as fitting
from .error_notes import explain

if TYPE_CHECKING:
    from ..trainer import Trainer


_PATIENCE = 3.0  # seconds, for a save under way when a rank has failed
_MARGIN = 60.0
_A_YEAR = 365 * 86400.0


@contextmanager
def stage(trainer: Trainer, name: str, module: Any, datamodule: Any) -> Iterator[None]:
    """One ``fit``, ``validate``, ``test`` or ``predict``. What is raised inside is told, once.

    Raises:
        PacelineError: for something that is no module, and inside of another run of this trainer.
    """
    _check(trainer, name, module)
    _take_place(trainer, module)
    trainer.hooks = HookTable(module, trainer.callbacks)
    trainer.begin(name, module, datamodule)
    trainer.name = fitting.run_name(trainer.settings.name, module)
    vars(module)["_trainer"] = trainer
    trainer.agreement = Agreement(trainer) if trainer.world > 1 else None
    trainer.signals = SignalStop(trainer.stop, give_up_reads=trainer.world == 1)
    trainer.watchdog = Watchdog(trainer, deadlines(trainer.settings.timeouts, trainer.world))
    failed: BaseException | None = None
    try:
        if trainer.strategy.environment.local_rank == 0:
            _call_where_written("prepare_data", datamodule, module)
        trainer.barrier()
        faultpoint("start.setup")
        _call_where_written("setup", datamodule, module, name)
        trainer.hooks.call("on_setup", trainer, name)
        if trainer.settings.compile is not False:
            trainer.compilation = Compilation(module, trainer.settings.compile, trainer.say)
        yield
    except BaseException as error:
        failed = error
        explain(error, trainer)
        trainer.run_log.say("".join(traceback.format_exception(error)), console=False)
        _call_each(trainer, "on_exception", failed, trainer, error)
        raise
    finally:
        try:
            teardowns = [owner.teardown for owner in (datamodule, module) if hasattr(owner, "teardown")]
            _call_each(trainer, "on_teardown", failed, trainer, name, also=teardowns)
        finally:
            _close(trainer, failed)


def _check(trainer: Trainer, name: str, module: Any) -> None:
    if not isinstance(module, TrainModule):
        raise PacelineError(
            f"{name} takes a TrainModule",
            got=f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__,
            fix=f"{module.__name__}()" if isinstance(module, type) else "subclass TrainModule",
        )
    if trainer.stage:
        raise PacelineError(
            f"{name} was called inside {trainer.stage}, and a trainer runs one thing at a time",
            fix="call it behind, or with a Trainer of its own",
        )


def _take_place(trainer: Trainer, module: TrainModule) -> None:
    """Start the ranks where that is still to be done; the strategy, where the model's size decides it."""
    environment, settings = trainer.strategy.environment, trainer.settings
    if environment.starts:
        start_ranks(environment.starts, settings.num_nodes, settings.max_restarts)
    configure(module)
    if settings.strategy == "auto" and environment.world > 1:
        strategy, why = choose_strategy(trainer.strategy, module)
        if why:
            attach(strategy, settings, environment, trainer.strategy.precision)
            trainer.use(strategy)
            trainer.say(why)


def attach(strategy: Strategy, settings: Any, environment: Environment, precision: Precision) -> None:
    """Give the strategy its place. The process that starts the ranks touches no device."""
    strategy.debug, strategy.sync_batchnorm = settings.debug, settings.sync_batchnorm
    strategy.holds_back = settings.nonfinite != "ignore"
    if environment.world > 1:  # whoever is late is to be named, which torch's own limit does not
        longest = max(deadlines(settings.timeouts, environment.world).values(), default=_A_YEAR)
        strategy.patience = longest + _MARGIN
    strategy.attach(environment, precision)
    if not environment.starts:
        precision.attach(environment.device)


def _close(trainer: Trainer, failed: BaseException | None) -> None:
    with ExitStack() as closing:  # from the last to the first, each of them whatever another one raises
        closing.callback(_leave, trainer)
        closing.callback(trainer.signals.close)
        closing.callback(trainer.watchdog.close)
        closing.callback(_close_compilation, trainer)
        closing.callback(trainer.strategy.close)
        closing.callback(trainer.lock.release)
        closing.callback(_close_writer, trainer, failed)
        for feed in trainer.feeds:
            closing.callback(feed.close)


def _close_writer(trainer: Trainer, failed: BaseException | None) -> None:
    # A rank that failed is not waited for by the others' updates, and so not by their part of a save.
    parted = failed is not None and trainer.world > 1
    unsaved = trainer.writer.close(_PATIENCE if parted else None)
    if unsaved is not None and failed is not None and unsaved is not failed:
        failed.add_note(f"a checkpoint failed too: {unsaved}")


def _close_compilation(trainer: Trainer) -> None:
    if trainer.compilation is not None:
        trainer.compilation.report(trainer.stage)
        trainer.compilation.undo()
        trainer.compilation = None


def _leave(trainer: Trainer) -> None:
    trainer.agreement = None
    vars(trainer.module).pop("_trainer", None)
    trainer.stop_clock()
    trainer.stage = ""


def _call_where_written(name: str, datamodule: Any, module: Any, *args: Any) -> None:
    """Call a data method of the DataModule and of the module, where they have it."""
    for owner in (datamodule, module):
        method = getattr(owner, name, None)
        if callable(method):
            method(*args)


def _call_each(
    trainer: Trainer, name: str, failed: BaseException | None, *args: Any, also: Sequence[Any] = ()
) -> None:
    """Call all of a closing hook, and ``also`` with the last argument, whatever one of them raises."""
    first: BaseException | None = None
    calls = [(hook, args) for hook in trainer.hooks[name]] + [(one, args[-1:]) for one in also]
    for call, given in calls:
        try:
            call(*given)
        except Exception as error:
            first = first or error
            if failed is not None:
                failed.add_note(f"then {name} failed too: {type(error).__name__}: {error}")
    if first is not None and failed is None:
        raise first
