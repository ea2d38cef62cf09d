"""The data of a fit: what is trained on in each epoch, and what is validated with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ....callbacks import BatchSizeScheduler, GradientAccumulationScheduler
from ....callbacks.batches.epoch_schedule import EpochSchedule
from ....errors import PacelineError
from ....strategies.launch.job_notes import noted_micro_batch
from ....strategies.ranks.comparison import same_everywhere
from ...data.combined_loader import CombinedLoader
from ...data.epoch_feeds import EpochFeeds
from ...data.feed import Feed, NoFeed
from ...data.sources import evaluation_feeds, find_data, missing_data, training_feed
from ...module import is_overridden, missing_method
from ...rng import derive, seeded
from ..context import StageContext
from ..feed_settings import FeedRequest

S = TypeVar("S", bound=EpochSchedule)
FindMicroBatch = Callable[[StageContext, Feed], int]
"""A search before step 1: how many samples a rank takes at once."""
_LOADERS = -1  # no position of a sample: draws apart from all of those


@dataclass(frozen=True)
class FitData:
    """What ``fit`` was given to read."""

    train: Any
    val: Any
    datamodule: Any


@dataclass(frozen=True)
class Resumption:
    """How ``fit`` was asked to continue an earlier run.

    Args:
        source: ``"auto"``, ``"latest"``, ``"best"`` or a path; None: a new run.
        allow: What may differ from the checkpoint.
        decay: The duration of a last decay, which the run ends with; None without one.
    """

    source: str | Path | None = None
    allow: frozenset[str] = frozenset()
    decay: Any = None


def schedule_of(context: StageContext, kind: type[S]) -> S | None:
    """The callback of a class that says how large the steps of an epoch are; None without one."""
    return next((c for c in context.callbacks if isinstance(c, kind)), None)


def choose_micro_batch(context: StageContext, feed: Feed, saved: int, find: FindMicroBatch) -> int:
    """How many samples a rank takes at once: what the run had, less where memory ran out, or a new search.

    Args:
        context: Of the stage.
        feed: The training data.
        saved: What the checkpoint has; 0 for none.
        find: Searches, where nothing is known.

    Raises:
        PacelineError: under manual optimization, where a step is one batch.
    """
    if not context.module.automatic_optimization:
        raise PacelineError(
            'batch_size="auto" cuts a step into micro-batches, and with manual optimization a step is one '
            "batch: the module steps the optimizer",
            code="batch-cannot-be-cut",
            fix="paceline.tools.find_batch_size, and that batch_size in the DataLoader",
        )
    feed.use_micro_batches(1)  # refuses what cannot be cut, before a search
    if feed.step_size is None:  # nothing is trained on
        return 1
    noted = [n for n in context.ranks.all_gather(noted_micro_batch(context.fit_number)) if n is not None]
    known = [*noted, *([saved] if saved else [])]
    return min(known) if known else find(context, feed)


class FitFeeds:
    """Makes the feeds of a fit, and makes them again where an epoch's data or steps are others.

    Args:
        saved: The counters of the checkpoint that the run resumes from; zeros for a new run.
    """

    def __init__(self, context: StageContext, data: FitData, saved: dict[str, Any]) -> None:
        self._context, self._data, self._saved = context, data, saved
        self._request = FeedRequest(context)
        self._schedule = schedule_of(context, GradientAccumulationScheduler)
        self._sizes = schedule_of(context, BatchSizeScheduler)
        self._every = context.settings.reload_dataloaders_every_n_epochs
        self._train: Any = None
        self._validation: dict[str, Feed] = {}
        self._loaded: int | None = None

    def open(self) -> tuple[Feed, dict[str, Feed]]:
        """The feed of the training data, and those of validation by name; they close with the stage.

        Raises:
            PacelineError: without data, and for what cannot be made again.
        """
        context, epoch = self._context, self._saved["epoch"]
        context.closing.callback(self._close_validation)
        if context.settings.limit_train_batches == 0 and not context.settings.overfit_batches:
            context.stop.request("limit_train_batches=0")
            self._load(epoch, train=False)
            feed: Feed = NoFeed(self._request.for_training(1))
            context.limits.set_epoch_length(0)
        elif self._every or self._schedule or self._sizes:
            feed = EpochFeeds(self._make, self._kind_of, epoch, reloads=bool(self._every))
        else:
            feed = self._make(epoch)
        context.closing.callback(feed.close)
        if (
            self._every
            and self._data.train is not None
            and (self._data.val is not None or not self._validation)
        ):
            raise PacelineError(
                "reload_dataloaders_every_n_epochs calls train_dataloader() and val_dataloader() of a "
                "DataModule or the module again, and fit was given the loaders themselves",
                code="conflicting-arguments",
                fix="fit(module, datamodule=...), or write the two methods on the module",
            )
        if self._saved["epoch_lengths"]:
            context.limits.set_lengths(self._saved["epoch_lengths"])
        return feed, self._validation

    def _kind_of(self, epoch: int) -> tuple[int, tuple[int, int | None]]:
        """What an epoch's feed differs by: when its loaders were made, and the size of its steps."""
        made = epoch - epoch % self._every if self._every else 0
        return made, self._size_of_steps(epoch)

    def _size_of_steps(self, epoch: int) -> tuple[int, int | None]:
        """Micro-batches in a step, and samples in one where they are given."""
        settings = self._context.settings
        accumulate = self._schedule.at(epoch) if self._schedule else settings.accumulate
        return accumulate, self._sizes.at(epoch) if self._sizes else settings.global_batch_size

    def _make(self, epoch: int, restored: bool = False) -> Feed:
        """The feed of an epoch; its loaders are made again where it is time, or the run was restored."""
        log_line = self._context.directory.log_line
        made, _ = self._kind_of(epoch)
        first, others = self._loaded is None, made != self._loaded
        if others or restored:
            self._load(made)
        feed = self._feed(epoch)
        self._set_lengths(feed, epoch, 0 if first else made)
        if first:
            return feed
        if others or restored:
            self._compare(feed, epoch)
        if restored:
            return feed
        if others:
            log_line(f"epoch {epoch + 1}: the dataloaders are made again")
        if self._schedule:
            several = "es" if feed.micro_batches > 1 else ""
            log_line(f"epoch {epoch + 1}: {feed.micro_batches} micro-batch{several} in a step")
        if self._sizes:
            log_line(f"epoch {epoch + 1}: {feed.step_size} samples in a step")
        return feed

    def _compare(self, feed: Feed, epoch: int) -> None:
        """See that all ranks made the same data.

        Raises:
            PacelineError: on all ranks, naming one that made other data.
        """
        mine, ranks = str(feed.fingerprint()), self._context.ranks
        if same_everywhere(ranks, mine):
            return
        found = ranks.all_gather(mine)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise PacelineError(
                    f"rank {rank} made other training data than rank 0 for epoch {epoch + 1}",
                    code="ranks-read-differently",
                    got=other[:300],
                    allowed=found[0][:300],
                    fix="train_dataloader() gives every rank the same data: each takes its own samples of "
                    "it. Draw from torch, random or numpy, which are seeded alike while it is called",
                )

    def _feed(self, epoch: int, quiet: bool = False) -> Feed:
        accumulate, global_batch = self._size_of_steps(epoch)
        settings = self._request.for_training(accumulate, global_batch)
        if quiet:
            settings = replace(settings, log_line=lambda text: None)
        saved = self._saved["global_batch"]
        if self._schedule:
            saved = saved * self._schedule.at(epoch) // self._schedule.at(0)
        module = self._context.module
        why = partial(missing_data, "train", self._data.datamodule, module)
        return training_feed(self._train, settings, saved, module.automatic_optimization, why)

    def _set_lengths(self, feed: Feed, epoch: int, begin: int) -> None:
        """The steps of all epochs from ``begin`` on, as far as ``feed``, of ``epoch``, shows them."""
        few = self._context.settings.fast_dev_run
        schedules = [s.scheduling for s in (self._schedule, self._sizes) if s is not None]
        later = sorted({epoch for schedule in schedules for epoch in schedule if epoch > begin})
        for first in (begin, *later):
            alike = self._size_of_steps(first) == self._size_of_steps(epoch)
            length = (feed if alike else self._feed(first, quiet=True)).steps_per_epoch
            length = min(length, int(few)) if few and length is not None else length
            self._context.limits.set_epoch_length(length, first)

    # -- loaders -------------------------------------------------------------------------------

    def _load(self, epoch: int, train: bool = True) -> None:
        """Take the loaders that were given, or have them made: ``trainer.epoch`` is that epoch then.

        Raises:
            PacelineError: when there are other validation loaders than before.
        """
        module, data = self._context.module, self._data
        first, self._loaded = self._loaded is None, epoch
        with self._at(epoch):
            if train:
                self._train = find_data(data.train, "train", data.datamodule, module)
            given = self._validation_data()
        request = self._request.for_evaluation("validate")
        feeds = {} if given is None else evaluation_feeds(given, request)
        if not first and [*feeds] != [*self._validation]:
            raise PacelineError(
                f"val_dataloader() gave other loaders in epoch {epoch + 1} than before",
                code="override-incomplete",
                got=", ".join(feeds) or f"{len(feeds)}",
                allowed=", ".join(self._validation) or f"{len(self._validation)}",
                fix="as many loaders, by the same names, each time",
            )
        self._close_validation()
        self._validation.clear()  # the loop over it has this dictionary
        self._validation |= feeds

    @contextmanager
    def _at(self, epoch: int) -> Iterator[None]:
        state = self._context.state
        now, state.epoch = state.epoch, epoch
        device = self._context.strategy.device
        # What is drawn depends on the epoch alone: alike on all ranks, and in a resumed run.
        alike = (
            seeded(derive(self._context.settings.seed, epoch, _LOADERS), device)
            if self._every
            else nullcontext()
        )
        try:
            with alike:
                yield
        finally:
            state.epoch = now

    def _close_validation(self) -> None:
        for feed in self._validation.values():
            feed.close()

    def _validation_data(self) -> Any:
        """The validation data; None where the run does not validate: logged, if it is half prepared."""
        context, data = self._context, self._data
        module, name = context.module, type(context.module).__name__
        written = is_overridden(module, "validation_step")
        if context.settings.limit_val_batches == 0:
            if written:
                context.directory.log_line("limit_val_batches=0: no validation")
            return None
        found = find_data(data.val, "val", data.datamodule, module)
        if written and found is not None and context.settings.overfit_batches:
            found = self._train.loaders if isinstance(self._train, CombinedLoader) else self._train
        if written and found is None:
            context.directory.log_line(f"{name} has a validation_step, but there is no validation data")
        elif found is not None and not written:
            missing = missing_method(module, "validation_step")
            context.directory.log_line(f"there is validation data, but {missing}")
        return found if written else None
