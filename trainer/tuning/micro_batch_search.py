"""``Trainer(batch_size="auto")``: the largest micro-batch that a rank's memory holds, before step 1."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...strategies.machine.devices import device_memory
from ..data.feed import Feed
from ..estimate.estimate import Wanted, estimate_run
from ..loops.context import StageContext
from ..trial import with_batch_size
from ..utils.text import first_line
from .batch_trials import BatchSizeTrial, Trials

_STEPS = 2  # the second one finds the optimizer's state there


def search_micro_batch(trainer: Any, context: StageContext, feed: Feed) -> int:
    """How many samples a rank takes at once, the same on all ranks.

    The estimate says where to begin; trials of a copy of the module find the largest size that fits. On a
    CPU none is larger than the estimate allows: it could end the process. There are no trials where one
    device does not hold the whole model.

    Args:
        trainer: Whose run it is.
        context: Of that run, before its step 1.
        feed: Its training data.
    """
    assert feed.step_size is not None
    part = -(-feed.step_size // context.ranks.data_world_size)
    if part == 1:
        return 1
    with _uncompiled(context):
        return _Search(trainer, context, feed, part).run()


@contextmanager
def _uncompiled(context: StageContext) -> Iterator[None]:
    """Inside, the module can be copied: what is compiled belongs to one object."""
    if context.compilation is not None:
        context.compilation.undo()
    try:
        yield
    finally:
        if context.compilation is not None:
            context.compilation.begin()


@contextmanager
def _no_log_of_torch() -> Iterator[None]:
    """An operation that fails under fake tensors is logged with its traceback, which is not the user's."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@dataclass(frozen=True)
class _Needs:
    """What a step with a micro-batch needs on a device, and what there is, in bytes.

    Args:
        own: Under the run's strategy.
        alone: On one device by itself, as a trial is.
        there: What a run may take.
    """

    own: int
    alone: int
    there: int


def sizes_of(part: int) -> list[int]:
    """The sizes worth a try: the largest piece of ``part`` samples in 1, 2, ... pieces, each size once.

    Example:
        >>> sizes_of(10)
        [10, 5, 4, 3, 2, 1]
    """
    sizes = [part]
    while sizes[-1] > 1:
        pieces = -(-part // (sizes[-1] - 1))
        sizes.append(-(-part // pieces))
    return sizes


class _Search:
    def __init__(self, trainer: Any, context: StageContext, feed: Feed, part: int) -> None:
        self._trainer, self._context, self._part = trainer, context, part
        self._loader, self._datamodule = feed.data, _set_up(context.datamodule)
        self._sizes = sizes_of(part)
        self._room = 0
        self._tried: list[str] = []

    def run(self) -> int:
        """The size of a micro-batch."""
        reason = ""
        try:
            with _no_log_of_torch():
                size, can_be_tried = self._estimated()
        except Exception as error:  # out of the user's step, which may need values
            size, can_be_tried = self._loader.batch_sampler.batch_size, True
            reason = first_line(error)
        found = self._context.ranks.all_gather((self._index(size), can_be_tried, reason))
        index: int = max(one[0] for one in found)
        can_be_tried = all(one[1] for one in found)
        reason = next((one[2] for one in found if one[2]), "")
        how = f"the estimate was {self._sizes[index]}"
        if reason:
            how = f"without an estimate ({reason}), which would have said where to begin"
        if can_be_tried:
            index = self._tried_from(index)
        else:
            self._tried.append("not tried: one device does not hold the whole model")
        found_size = self._sizes[index]
        self._context.directory.log_line(
            f'batch_size="auto": a rank takes {found_size} of its {self._part} samples in a step at once; '
            f"{how}; {', '.join(self._tried)}"
        )
        return found_size

    def _index(self, most: int) -> int:
        """Which of the sizes is the largest of at most so many samples."""
        return next(i for i, size in enumerate(self._sizes) if size <= max(most, 1))

    # -- by the estimate ---------------------------------------------------------------------------

    def _estimated(self) -> tuple[int, bool]:
        """How many samples the estimate says fit at once, and whether a trial can show it."""
        whole = self._needs(self._part)
        self._room = max(0, whole.own - whole.alone)
        if whole.own <= whole.there:
            return self._part, whole.alone <= whole.there
        half = self._sizes[1]
        small = max(1, half // 2)
        most = small
        if small < half:
            of_half, of_small = self._needs(half), self._needs(small)
            each = max(1.0, (of_half.own - of_small.own) / (half - small))
            most = min(half, small + int((of_small.there - of_small.own) / each))
        for size in self._sizes[self._index(most) :]:
            needs = self._needs(size)
            if needs.own <= needs.there:
                break
        return size, needs.alone <= needs.there

    def _needs(self, size: int) -> _Needs:
        context, loader = self._context, with_batch_size(self._loader, size, drop_last=False)
        wanted = Wanted(accumulate=1 if size == self._part else 2)
        found = estimate_run(self._trainer, context.module, loader, self._datamodule, wanted)
        own, alone = found.row(context.strategy.name), found.row("single")
        return _Needs(own.needed, alone.needed, int(found.limit * found.memory))

    # -- by trials ---------------------------------------------------------------------------------

    def _tried_from(self, index: int) -> int:
        """The index of the largest size that fits, or ``index`` where there can be no trial.

        What is wrong in the step itself, the first step of the run raises.
        """
        try:
            return self._first_that_fits(index)
        except Exception as error:
            reason = first_line(error)
            self._tried.append(f"a trial was not possible ({reason})")
            return index

    def _first_that_fits(self, index: int) -> int:
        """The index of the largest size that fits, from ``index`` on; the last one where none does."""
        none = fits = len(self._sizes)
        first = index
        fails = index - 1 if self._context.strategy.device.type == "cpu" else -1
        while True:
            if self._fit(self._sizes[index]):
                upcoming = index - 1 if index == first else (fails + index) // 2
                fits = index
            else:
                upcoming = self._index(self._sizes[index] // 2) if fits == none else (index + fits) // 2
                fails = index
            if fits - fails <= 1:
                return min(fits, none - 1)
            index = upcoming

    def _fit(self, size: int) -> bool:
        data, accumulate = (self._loader, self._datamodule), 1 if size == self._part else 2
        module = self._context.module
        trial = Trials(self._trainer, module, data, _STEPS, size, size, accumulate).run()
        fits = trial is None or (trial.fits and self._leaves_room(trial))
        self._tried.append(f"{size} {'fits' if fits else 'does not fit'}")
        return fits

    def _leaves_room(self, trial: BatchSizeTrial) -> bool:
        """Whether memory is left for what the strategy needs besides: buckets of a reduction, say."""
        if trial.peak_bytes is None:
            return True
        return trial.peak_bytes + self._room <= device_memory(self._context.strategy.device)


def _set_up(datamodule: Any) -> Any:
    """A DataModule whose data is prepared: an estimate and a trial do not prepare it again."""
    if datamodule is None:
        return None
    duplicate = copy.copy(datamodule)
    vars(duplicate).update(prepare_data=_nothing, setup=_nothing, teardown=_nothing)
    return duplicate


def _nothing(*arguments: Any) -> None:
    pass
