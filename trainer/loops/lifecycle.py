"""What surrounds every run: the start of its ranks, the one report of an error, and teardown always."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...callbacks.hooks import HookTable, with_arity
from ...callbacks.loggers.logger import guarded
from ...callbacks.trainer_view import TrainerView
from ...common.faultpoints import faultpoint
from ...errors import PacelineError
from ...strategies import Collectives, Environment, Precision, Strategy, StrategySettings, start_ranks
from ...strategies.launch.job_notes import launcher_requeues, note_trained
from ...strategies.launch.slurm import ignore_signals
from ..datamodule import DataModule
from ..faults.signals import SignalStop
from ..faults.stop_agreement import StopController
from ..faults.watchdog import Watchdog, deadlines
from ..metrics.metric_objects import merged_over
from ..module import TrainModule, configure
from ..run.directory import run_name
from ..runtime.compilation import Compilation
from .context import RunContext, StageContext, parts_of
from .error_notes import explain

if TYPE_CHECKING:
    from ..config.arguments import TrainerArguments

_MARGIN = 60.0
_A_YEAR = 365 * 86400.0
_OUR_CALLBACKS = HookTable.__module__.rpartition(".")[0]


def attach(
    strategy: Strategy, settings: TrainerArguments, environment: Environment, precision: Precision
) -> None:
    """Give the strategy its environment. The process that starts the ranks touches no device."""
    collective_timeout = None
    if environment.world_size > 1:  # whoever is late is to be named, which torch's own limit does not
        longest = max(deadlines(settings.timeouts, environment.world_size).values(), default=_A_YEAR)
        collective_timeout = longest + _MARGIN
    strategy.settings = StrategySettings(
        debug=settings.debug,
        sync_batchnorm=settings.sync_batchnorm,
        channels_last=settings.channels_last,
        skip_nonfinite=settings.nonfinite != "ignore",
        collective_timeout=collective_timeout,
    )
    strategy.attach(environment, precision)
    if environment.starts:
        return
    ranks = environment.world_size
    if strategy.many_ranks and ranks > 1 and type(strategy.collectives) is Collectives:  # of one process
        raise PacelineError(
            f"strategy {strategy.name!r} is one of {ranks} ranks, and its collectives reach no other",
            code="strategy-not-suited",
            fix="derive it from paceline.strategies.Distributed, or set self.collectives in attach, to "
            "GroupCollectives(environment) or a subclass of Collectives",
        )
    precision.attach(environment.device)


def check_stage(name: str, module: Any, current: str) -> None:
    """Refuse what is no module, and a run inside of another one.

    Args:
        name: The stage to begin: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        module: What the user gave as the module.
        current: The stage of this trainer that has not ended; "" for none.

    Raises:
        PacelineError: for both.
    """
    if module is None and name in ("validate", "test", "predict"):
        raise PacelineError(
            f"{name} without a module takes the one of the last run, and there was none",
            code="missing-argument",
            fix=f"{name}(module, ...)",
        )
    if module is None:
        raise PacelineError(
            f"{name} takes a TrainModule", code="wrong-object", got=None, fix=f"{name}(module, ...)"
        )
    if not isinstance(module, TrainModule):
        fix = "subclass TrainModule"
        if isinstance(module, type):
            fix = f"{module.__name__}()"
        elif isinstance(module, torch.nn.Module):
            fix += ", or TrainModule.of(model, loss, optimizer)"
        elif isinstance(module, (torch.utils.data.DataLoader, torch.utils.data.Dataset, DataModule)):
            fix = f"the module comes first: {name}(module, ...)"
        raise PacelineError(
            f"{name} takes a TrainModule",
            code="wrong-object",
            got=f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__,
            fix=fix,
        )
    if current:
        raise PacelineError(
            f"{name} was called inside {current}, and a trainer runs one thing at a time",
            code="already-running",
            fix="call it afterwards, or with another Trainer",
        )


def start_or_join_ranks(
    strategy: Strategy, settings: TrainerArguments, module: TrainModule
) -> tuple[Strategy, str | None]:
    """Start the ranks where that is still to be done: this process ends there.

    Returns:
        The strategy to compute with, and why it is another one, where the model's size decides it.
    """
    environment = strategy.environment
    if environment.starts:
        start_ranks(environment.starts, settings.num_nodes, settings.max_restarts)
    configure(module)
    if settings.strategy != "auto" or environment.world_size == 1:
        return strategy, None
    from ...strategies import choose_strategy

    chosen, why = choose_strategy(strategy, module)
    if why:
        attach(chosen, settings, environment, strategy.precision)
    return chosen, why


@contextmanager
def stage(
    run: RunContext, trainer: TrainerView, name: str, module: TrainModule, datamodule: Any
) -> Iterator[StageContext]:
    """One ``fit``, ``validate``, ``test`` or ``predict``. What is raised inside is reported, once."""
    run.directory.begin_stage(run_name(run.settings.name, module))
    with ExitStack() as closing:  # each of them, whatever another one raises
        if name != "fit":
            closing.enter_context(run.logger.refusing(f"{name} outside of its pass over the data"))
        context = _open_stage(run, trainer, name, module, datamodule, closing)
        failed: BaseException | None = None
        try:
            if run.strategy.environment.local_rank == 0:
                _prepare_data(run, datamodule, module)
            # Waits for prepare_data, which may use all CPUs. Ranks that differ are reported with the rest.
            if all(run.ranks.all_gather(run.settings.numa_affinity)):
                from ..runtime.cpu_affinity import own_cpus

                closing.enter_context(own_cpus(run.ranks, run.strategy.device, run.directory.log_line))
            faultpoint("start.setup")
            _call_where_written("setup", datamodule, module, name)
            context.hooks.call("on_setup", trainer, name)
            if context.compilation is not None:
                context.compilation.begin()
            yield context
        except BaseException as error:
            failed = error
            explain(error, context)
            lines = "".join(traceback.format_exception(error))
            run.directory.log_line(lines, console=False)
            with run.logger.refusing("on_exception"):
                _call_each(context, "on_exception", failed, trainer, error)
            raise
        finally:
            faultpoint("end.teardown")
            run.logger.close_queues()
            owners: list[Any] = [one for one in (datamodule, module) if hasattr(one, "teardown")]
            teardowns = [with_arity(owner.teardown, 1) for owner in owners]
            with run.logger.refusing("on_teardown"):
                _call_each(context, "on_teardown", failed, trainer, name, also=teardowns)


def _around_hook(
    context: AbstractContextManager[object] | None, owner: Any, name: str, hook: Callable[..., None]
) -> Callable[..., None]:
    """What is called in place of a hook: one that cannot write, or one of the user's within ``context``."""
    hook = guarded(owner, name, hook)
    if context is None or type(owner).__module__.startswith(_OUR_CALLBACKS):
        return hook

    def call(*args: Any) -> None:
        with context:
            hook(*args)

    return call


def _open_stage(
    run: RunContext,
    trainer: TrainerView,
    name: str,
    module: TrainModule,
    datamodule: Any,
    closing: ExitStack,
) -> StageContext:
    """Put the parts together; ``closing`` ends them, from the last to the first."""
    settings, strategy = run.settings, run.strategy
    hooks = HookTable(module, run.callbacks, partial(_around_hook, strategy.around_hooks))
    run.stop.begin_stage()
    closing.callback(_leave, run, module, datamodule)
    if name == "fit":
        closing.push(partial(_discard_folder, run))
    vars(module).update(_trainer=trainer, _logger=run.logger)
    if isinstance(datamodule, DataModule):
        vars(datamodule).update(_trainer=trainer)
    in_job = strategy.environment.job is not None
    signals = SignalStop(run.stop.request, give_up_reads=run.ranks.world_size == 1, in_batch_job=in_job)
    closing.callback(_close_signals, signals, run.stop)
    closing.push(partial(_agree_on_signals, run.stop))
    seconds = deadlines(settings.timeouts, run.ranks.world_size)
    watchdog = Watchdog(run.ranks, run.state, run.directory, seconds)
    closing.callback(watchdog.close)
    compilation = None
    if settings.compile is not False:
        compilation = Compilation(module, settings.compile, run.directory.log_line)
    context = StageContext(
        **parts_of(run),
        name=name,
        trainer=trainer,
        module=module,
        datamodule=datamodule,
        hooks=hooks,
        signals=signals,
        watchdog=watchdog,
        compilation=compilation,
        closing=closing,
    )
    closing.enter_context(merged_over(run.ranks.data_group, module))  # for compute() in hooks
    closing.callback(_close_compilation, context)
    closing.callback(strategy.close)
    closing.callback(run.directory.release)
    return context


def _close_compilation(context: StageContext) -> None:
    if context.compilation is not None:
        context.compilation.report(context.name)
        context.compilation.undo()


def _agree_on_signals(stop: StopController, kind: Any, failed: BaseException | None, tb: Any) -> None:
    faultpoint("end.closed")
    if failed is None:
        stop.agree_on_signals()


def _discard_folder(run: RunContext, kind: Any, failed: BaseException | None, tb: Any) -> None:
    """A fit that failed before its first step was done leaves no numbered folder."""
    if failed is not None and not run.state.global_step and run.directory.is_disposable:
        run.directory.discard()


def _close_signals(signals: SignalStop, stop: StopController) -> None:
    """Put the earlier handlers back. A signal that came too late to be agreed on is theirs."""
    faultpoint("end.agreed")
    signals.close()
    if signals.received is not None and stop.signal is None:
        os.kill(os.getpid(), signals.received)


def _leave(run: RunContext, module: TrainModule, datamodule: Any) -> None:
    run.stop.end_stage()
    for name in ("_trainer", "_logger"):
        vars(module).pop(name, None)
    if isinstance(datamodule, DataModule):
        vars(datamodule).pop("_trainer", None)
    run.clock.stop()


def report_interrupt(trainer: TrainerView, received: int | None) -> None:
    """Say how to continue a run that Ctrl-C, or the stop button of a notebook, has stopped in order."""
    if received == signal.SIGINT and trainer.is_global_zero and (latest := trainer.run.latest) is not None:
        trainer.log_line(
            f'interrupted after step {trainer.global_step}; fit(..., resume="auto") continues from {latest}'
        )


def end_as_signalled(context: StageContext, has_trained: bool = False) -> None:
    """End this process where a signal has stopped the stage; its job is requeued first.

    Args:
        context: Of the stage.
        has_trained: Whether it has done a step.
    """
    environment, ends_job = context.strategy.environment, context.ranks.is_global_zero
    job = environment.job if ends_job and not launcher_requeues() else None
    if has_trained:
        note_trained()

    def requeue(number: int) -> None:
        if job is None:
            return
        ignore_signals()  # a job that is requeued is ended
        if line := job.requeue_after(number, has_trained):
            context.directory.log_line(line)

    context.signals.reraise(context.stop.signal, requeue)


def _prepare_data(run: RunContext, *owners: Any) -> None:
    """Call ``prepare_data``; attributes that it sets are reported, because other ranks do not get them."""
    for owner in owners:
        method = getattr(owner, "prepare_data", None)
        if not callable(method):
            continue
        written_on = vars(getattr(method, "__self__", owner))
        before = set(written_on)
        with_arity(method, 0)()
        if run.ranks.world_size > 1 and (added := sorted(set(written_on) - before)):
            shown = ", ".join(f"self.{name}" for name in added)
            run.directory.log_line(
                f"warning: prepare_data set {shown}: on this rank alone, because it runs once on each "
                "machine; setup(self, stage) runs on every rank"
            )


def _call_where_written(name: str, datamodule: Any, module: Any, *args: Any) -> None:
    """Call a data method of the DataModule and of the module, where they have it."""
    for owner in (datamodule, module):
        method = getattr(owner, name, None)
        if callable(method):
            with_arity(method, len(args))(*args)


def _call_each(
    context: StageContext, name: str, failed: BaseException | None, *args: Any, also: Sequence[Any] = ()
) -> None:
    """Call all of a closing hook, and ``also`` with the last argument, whatever one of them raises."""
    first: BaseException | None = None
    calls = [(hook, args) for hook in context.hooks[name]] + [(one, args[-1:]) for one in also]
    for call, given in calls:
        try:
            call(*given)
        except Exception as error:
            first = first or error
            if failed is not None:
                failed.add_note(f"then {name} failed too: {type(error).__name__}: {error}")
    if first is not None and failed is None:
        raise first
