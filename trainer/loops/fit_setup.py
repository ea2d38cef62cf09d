"""Everything between ``fit(...)`` and the first step, in order."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks import Checkpoint
from ...callbacks.monitor import monitor_name
from ...errors import PacelineError, nearest
from ...faultpoints import faultpoint
from ...strategies import StepPlan
from ...strategies.launch.job_notes import note_run, restarts
from ..checkpoint import format as files
from ..checkpoint import run_state as snapshot
from ..data.fingerprint import sample_of_weights
from ..data.sources import evaluation_feeds, find_data, training_feed
from ..module import is_overridden
from ..rng import derive, seed_everything
from ..run.directory import make_run_folder, write_config, write_environment
from ..run.lock import check_writable
from ..run.run import find_restart, find_resume, pass_over
from .evaluation_loop import EvaluationLoop
from .optimizers import Optimization, read_configuration
from .startup_report import first_lines
from .training_loop import TrainLoop

if TYPE_CHECKING:
    from ..data.feed import Feed
    from ..trainer import Trainer


@dataclass
class FitData:
    """What ``fit`` was given to read."""

    train: Any
    val: Any
    datamodule: Any


def check_module(trainer: Trainer) -> None:
    """Refuse a module that cannot be trained, before anything is loaded."""
    module = trainer.module
    name = type(module).__name__
    for method, what in (("training_step", "return the loss"), ("configure_optimizers", "")):
        if not is_overridden(module, method):
            example = (
                "def training_step(self, batch, batch_idx): ... return loss"
                if what
                else "def configure_optimizers(self): return torch.optim.AdamW(self.parameters())"
            )
            raise PacelineError(f"{name} has no {method}", fix=example)
    if not any(p.requires_grad for p in module.parameters()):
        raise PacelineError(
            f"{name} has no trainable parameter",
            fix="assign its layers to self in __init__, or unfreeze some with requires_grad_(True)",
        )


def prepare(trainer: Trainer, data: FitData, resume: str | Path | None, allow: frozenset[str]) -> TrainLoop:
    """Data, folder, optimizers, checkpoint, first lines: a loop that is ready to run."""
    arguments, module, strategy = trainer.settings, trainer.module, trainer.strategy
    seed_everything(arguments.seed)
    faultpoint("start.data")
    if restarts():
        trainer.say(f"started again, {restarts()} of at most {arguments.max_restarts} times")

    def find() -> Path | None:
        found = find_restart(trainer, trainer.fit_number)
        return find_resume(trainer, resume) if found is None and resume is not None else found

    source = find()
    saved = files.read_manifest(source)["counters"]["global_batch"] if source else 0
    train = find_data(data.train, "train", data.datamodule, module)
    feed = training_feed(trainer, train, saved)
    trainer.feeds.append(feed)
    trainer.steps_per_epoch = feed.steps_per_epoch
    validation = _validation_feeds(trainer, data, train)

    def build_optimizers() -> Optimization:
        configured = module.configure_optimizers()
        return read_configuration(module, configured, module.automatic_optimization)

    check_ranks(trainer, feed)
    whole = feed.step_size
    strategy.plan = StepPlan(
        samples=whole,
        micro_batch=None if whole is None else -(-whole // (feed.micro_batches * trainer.world)),
        micro_batches=feed.micro_batches,
        clip_norm=arguments.clip_grad_norm,
        hooked=bool(trainer.hooks["on_before_optimizer_step"]),
    )
    for parameter in module.parameters():
        parameter.grad = None  # what a module brings along is no part of step 1
    faultpoint("start.module")
    trainer.first_weights = sample_of_weights(module)
    trainer.optimization = strategy.setup(module, build_optimizers)
    faultpoint("start.restore")
    if trainer.rank:  # what is drawn in the model from here on is another rank's own
        seed_everything(derive(arguments.seed, trainer.rank))
    _check_monitored_phases(trainer, bool(validation))
    source, inexact = _restore(trainer, source, find, resume in ("auto", "latest") or restarts(), allow)
    _settle_folder(trainer, source)
    if trainer.is_global_zero and trainer.folder is not None:
        note_run(trainer.fit_number, trainer.folder)
    faultpoint("start.folder")
    trainer.state.global_batch = feed.step_size or 0
    for line in first_lines(trainer, feed, source, inexact):
        trainer.say(line)
    loop = EvaluationLoop(trainer, "validate", validation) if validation else None
    trainer.validation = loop
    return TrainLoop(trainer, feed, trainer.optimization, loop)


def _restore(
    trainer: Trainer,
    source: Path | None,
    find: Callable[[], Path | None],
    is_choice: Any,
    allow: frozenset[str],
) -> tuple[Path | None, list[str]]:
    """Load the checkpoint, or where there is a choice, the newest that is whole."""
    while source is not None:
        try:
            return source, snapshot.restore(trainer, source, allow)
        except files.CheckpointError as damage:
            if not is_choice:
                raise
            pass_over(trainer, source, damage)
        source = find()
    return None, []


def _validation_feeds(trainer: Trainer, data: FitData, train: Any) -> dict[str, Feed]:
    module, name = trainer.module, type(trainer.module).__name__
    found = find_data(data.val, "val", data.datamodule, module)
    written = is_overridden(module, "validation_step")
    if written and found is not None and trainer.settings.overfit_batches:
        found = train
    if trainer.settings.limit_val_batches == 0:
        return {}
    if not written or found is None:
        if written:
            trainer.say(f"{name} has a validation_step, but there is no validation data")
        elif found is not None:
            trainer.say(f"there is validation data, but {name} has no validation_step")
        return {}
    feeds = evaluation_feeds(trainer, "validate", found)
    trainer.feeds.extend(feeds.values())
    return feeds


def _settle_folder(trainer: Trainer, source: Path | None) -> None:
    """A resumed run goes on in its own folder when its newest checkpoint was taken; else a new one."""
    arguments = trainer.settings
    parent = None
    if source is not None:
        run = source.parent.parent
        finished = files.finished(source.parent)
        if finished and finished[-1] == source and (run / "config.yaml").exists():
            trainer.folder = run
        parent = str(source)
    if arguments.fast_dev_run or trainer.keeps_nothing:
        trainer.folder = None
    elif trainer.folder is None:
        trainer.folder = trainer.on_rank_zero(lambda: _new_folder(trainer, parent))
    folder = trainer.folder
    if folder is not None:
        trainer.on_rank_zero(lambda: trainer.lock.take(folder))
        trainer.on_rank_zero(lambda: check_writable(folder / "checkpoints"))
        if trainer.is_global_zero:
            files.sweep(folder / "checkpoints")
        for callback in trainer.callbacks:
            if isinstance(callback, Checkpoint):
                callback.catch_up(trainer)
    trainer.run_log.open(trainer.folder, trainer.rank)


def _new_folder(trainer: Trainer, parent: str | None) -> Path:
    folder = make_run_folder(trainer.settings.run_dir, trainer.name)
    write_config(folder, trainer.config() | ({"parent": parent} if parent else {}))
    more = {"fit": trainer.fit_number, "world": trainer.world, "weights": trainer.first_weights}
    write_environment(folder, more)
    return folder


def check_ranks(trainer: Trainer, feed: Feed) -> None:
    """See that all ranks are about to do the same, before they wait for each other in vain.

    Raises:
        PacelineError: on every rank, naming the one that has another module, data or settings.
    """
    if trainer.world == 1:
        return
    parts = [f"{name} {list(p.shape)} {p.dtype}" for name, p in trainer.module.named_parameters()]
    mine = {
        "module": f"{type(trainer.module).__name__} of {len(parts)} parameters, "
        f"checksum of their shapes {zlib.crc32(str(parts).encode()):08x}",
        "training data": str(feed.fingerprint()),
    }
    mine |= {f"Trainer({name}=...)": str(value) for name, value in trainer.config()["trainer"].items()}
    everyone = trainer.strategy.gather(mine)
    for rank, other in enumerate(everyone):
        for what, value in other.items():
            if value != everyone[0][what]:
                raise PacelineError(
                    f"rank {rank} has another {what} than rank 0",
                    got=value[:300],
                    allowed=everyone[0][what][:300],
                    fix="every rank runs the script from its top: seed what it draws, and read the same "
                    "files on all",
                )


def run_name(settings_name: str | None, module: Any) -> str:
    """The run's name: as given, else the module's class name in lower case with dashes."""
    if settings_name:
        return settings_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(module).__name__).lower()


def _monitored(trainer: Trainer) -> list[tuple[str, str]]:
    """(who, full name) of everything that waits for a value."""
    found = [
        (type(c).__name__, monitor_name(name))
        for c in trainer.callbacks
        if isinstance(name := getattr(c, "monitor", None), str)
    ]
    schedules = trainer.optimization.schedules
    return found + [(type(s.scheduler).__name__, s.monitor) for s in schedules if s.monitor]


def _check_monitored_phases(trainer: Trainer, validates: bool) -> None:
    settings = trainer.settings
    off = ["validate_every=None"] if settings.validate_every is None else []
    if settings.limit_val_batches is not None and not settings.limit_val_batches:
        off.append("limit_val_batches=0")
    for who, name in _monitored(trainer):
        if name.startswith("val/") and (off or not validates):
            raise PacelineError(
                f"{who} watches {name!r}, but this run has no validation",
                got=", ".join(off) or "no validation data or no validation_step",
                fix="give fit a val_dataloader (and the module a validation_step), or watch "
                "'train/loss_epoch'",
            )


def sanity_check(trainer: Trainer) -> None:
    """A few validation batches before training: nothing is logged, mistakes show before they cost."""
    batches = 1 if trainer.settings.fast_dev_run else trainer.settings.sanity_val_batches
    if trainer.validation is None or not batches or trainer.global_step or trainer.interrupted:
        return
    before = dict(trainer.metrics)
    trainer.sanity_checking = True
    try:
        if trainer.validation.run(trainer.metrics.update, limit=batches):
            logged = [name for name in trainer.metrics if name not in before]
            require_monitored(trainer, logged)
    finally:
        trainer.sanity_checking = False
        trainer.metrics.clear()
        trainer.metrics.update(before)


def require_monitored(trainer: Trainer, logged: list[str]) -> None:
    """Every watched value of validation must be among those that validation logs."""
    for who, name in _monitored(trainer):
        if name.startswith("val/") and name not in logged:
            raise PacelineError(
                f"{who} watches {name!r}, which validation does not log",
                got=f"logged: {', '.join(logged) or 'nothing'}",
                meant=nearest(name, logged),
                fix=f"self.log({name.removeprefix('val/')!r}, value) in validation_step",
            )
