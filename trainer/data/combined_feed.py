"""Steps of several training loaders: a step of each of them together is one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...errors import PacelineError
from ..rng import derive
from .combined_loader import CombinedLoader
from .feed import Feed, FeedSettings, MicroBatches


class _Part:
    """One loader: its feed, which pass over it is under way, and how far that is.

    Attributes:
        number: Of the pass, over the whole run: a loader that begins again has a new order.
        position: How far the pass is, in samples.
        at_end: Whether the pass is over.
        done: Whether any pass of the epoch under way is over.
    """

    def __init__(self, name: str, feed: Feed) -> None:
        self.name, self.feed = name, feed
        self.number, self.position, self.at_end, self.done = -1, 0, False, False
        self._steps: Iterator[MicroBatches] = iter(())

    def begin(self, number: int, position: int = 0) -> None:
        """Begin a pass, or what is left of it."""
        self.number, self.position, self.at_end = number, position, False
        self._steps = self.feed.steps(number, position)

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken, during an epoch."""
        self.done = saved["done"]
        if saved["at_end"]:
            self.number, self.at_end = saved["number"], True
        else:
            self.begin(saved["number"], saved["position"])

    def state_dict(self) -> dict[str, Any]:
        """What ``resume`` takes."""
        counted = {"number": self.number, "position": self.position}
        return counted | {"at_end": self.at_end, "done": self.done, "source": self.feed.state_dict()}

    def take(self) -> MicroBatches:
        """The next step of the pass.

        Raises:
            PacelineError: when there is none.
        """
        step = next(self._steps, None)
        if step is None:
            raise PacelineError(
                f"training loader {self.name!r} gave no batch",
                code="no-data",
                got=str(self.feed.fingerprint()),
                fix="see that its dataset is not empty, and drop_last does not drop all of it; a generator "
                "is exhausted after one pass",
            )
        self.position += step.advance
        self.at_end = self.feed.ended
        self.done = self.done or self.at_end
        return step


class CombinedFeed(Feed):
    """Takes a step of each loader, and makes one of them.

    Args:
        data: The loaders.
        settings: What every feed needs to know. Its global batch size is of all loaders together, each of
            which has its part in proportion to its batch size.
        make: Makes the feed of one loader.

    Raises:
        PacelineError: when steps cannot be the same on any number of ranks.
    """

    def __init__(
        self, data: CombinedLoader, settings: FeedSettings, make: Callable[[Any, FeedSettings], Feed]
    ) -> None:
        super().__init__(settings)
        self.data, self._mode = data, data.mode
        own = [
            replace(
                settings,
                global_batch=None,
                dataloader_idx=number,
                # Loaders of one length shall not be shuffled alike.
                seed=derive(settings.seed, number) if number else settings.seed,
            )
            for number in range(len(data.named))
        ]
        feeds = [make(loader, one) for loader, one in zip(data.named.values(), own, strict=True)]
        if settings.global_batch is not None:
            shares = _shares(settings.global_batch, feeds)
            own = [replace(one, global_batch=share) for one, share in zip(own, shares, strict=True)]
            feeds = [make(loader, one) for loader, one in zip(data.named.values(), own, strict=True)]
        self._parts = [_Part(name, feed) for name, feed in zip(data.named, feeds, strict=True)]
        self.micro_batches = max(feed.micro_batches for feed in feeds)
        self._pieces = self.micro_batches * settings.ranks.data_world_size
        self._check_parts()
        self.step_size = _sum_of_known([feed.step_size for feed in feeds])
        lengths = [feed.steps_per_epoch for feed in feeds]
        known = [length for length in lengths if length is not None]
        if len(known) == len(lengths):
            self.steps_per_epoch = min(known) if self._mode == "min" else max(known)
        self._restored: dict[str, Any] | None = None
        self._state: dict[str, Any] = {}
        self._taken: list[_Part] = []

    def _check_parts(self) -> None:
        """See that steps can be cut alike, where they are cut.

        Raises:
            PacelineError: naming the loader that cannot.
        """
        if self._pieces == 1:
            return
        if self.settings.on_error.startswith("skip"):
            raise PacelineError(
                'on_data_error="skip" with several training loaders takes one device and one micro-batch '
                "in a step: the samples that are left would not count alike",
                code="skip-not-possible",
                got=f"{self._pieces} micro-batches in a step",
                fix='on_data_error="retry"',
            )
        for part in self._parts:
            size = part.feed.step_size
            if size is not None and size % self._pieces:
                parts = f"{self._pieces} equal parts"
                raise PacelineError(
                    f"{size} samples in a step of {part.name!r} cannot be cut into {parts}",
                    code="batch-cannot-be-cut",
                    fix="other batch sizes, or another global_batch_size",
                )
            if part.feed.even is False:
                raise self._uneven(part.name)

    def _uneven(self, name: str) -> PacelineError:
        many = self.settings.ranks.data_world_size
        ranks = f"{many} ranks" if many > 1 else "one device"
        return PacelineError(
            f"the last step of training loader {name!r} is not a full one, and its samples would not count "
            "alike beside those of the other loaders",
            code="batch-cannot-be-cut",
            got=f"{self.micro_batches} micro-batches in a step on {ranks}",
            fix=f"drop_last=True for {name!r}, or a multiple of its samples in a step",
        )

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        restored, self._restored = self._restored, None
        self.ended, self._taken = False, []
        for part in self._parts:
            part.done = False
            saved = None if restored is None else restored[part.name]
            if saved is not None:
                part.number = saved["number"]
                part.feed.load_state_dict(saved["source"])
            if saved is not None and position:
                part.resume(saved)
            else:
                part.begin(max(part.number + 1, epoch))
        passed = 0
        while restored is None and passed < position and not self.ended:
            passed += self._take().advance
        while not self.ended:
            step = self._take()
            self._state = self._state_now()  # a later step that fails must not count for any loader
            yield step

    def _take(self) -> MicroBatches:
        """One step of each loader that has not ended."""
        taken: list[MicroBatches | None] = []
        self._taken = []
        for part in self._parts:
            if part.done and self._mode == "max":
                taken.append(None)
                continue
            if part.at_end:
                part.begin(part.number + 1)
            step = part.take()
            self._check(part, step)
            taken.append(step)
            self._taken.append(part)
        done = [part.done for part in self._parts]
        self.ended = any(done) if self._mode == "min" else all(done)
        return self._joined(taken)

    def _check(self, part: _Part, step: MicroBatches) -> None:
        """See that each micro-batch has the same part of the step."""
        if self._pieces == 1:
            return
        if step.total is None:
            raise PacelineError(
                f"the batches of training loader {part.name!r} come ready made, and a rank does not know "
                "the sizes of the other ranks' batches",
                code="batch-cannot-be-cut",
                fix="a DataLoader with a batch_size",
            )
        even = all(size * self._pieces == step.total for size in step.sizes)
        if not even or len(step.sizes) != self.micro_batches:
            raise self._uneven(part.name)

    def _joined(self, taken: list[MicroBatches | None]) -> MicroBatches:
        steps = [step for step in taken if step is not None]
        batches = [
            self.data.batch([None if step is None else step.batches[number] for step in taken])
            for number in range(len(steps[0].batches))
        ]
        return MicroBatches(
            batches,
            [sum(sizes) for sizes in zip(*(step.sizes for step in steps), strict=True)],
            _sum_of_known([step.total for step in steps]),
            sum(step.advance for step in steps),
        )

    def samples_of(self, micro_batch: int) -> list[Any]:
        return [f"{p.name}: {i}" for p in self._taken for i in p.feed.samples_of(micro_batch)]

    def fingerprint(self) -> dict[str, Any]:
        found: dict[str, Any] = {"loaders": ", ".join(p.name for p in self._parts), "mode": self._mode}
        for part in self._parts:
            found |= {f"{key} of {part.name}": value for key, value in part.feed.fingerprint().items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def _state_now(self) -> dict[str, Any]:
        loaders = {part.name: part.state_dict() for part in self._parts}
        own_part = any(one["source"].get("own_part") for one in loaders.values())
        return {"loaders": loaders} | ({"own_part": True} if own_part else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:  # of a run that was stopped before its first step
            return
        loaders = state["loaders"]
        for part in self._parts:
            saved = loaders[part.name]
            if not all(type(saved[key]) is int for key in ("number", "position")):
                raise TypeError("number and position count")
        self._restored, self._state = loaders, state

    def use_micro_batches(self, size: int) -> None:
        raise PacelineError(
            'batch_size="auto" cuts the steps of one training loader, and there are several',
            code="batch-cannot-be-cut",
            got=", ".join(part.name for part in self._parts),
            fix="global_batch_size or accumulate, which cut the steps of each of them",
        )

    def close(self) -> None:
        for part in self._parts:
            part.feed.close()


def _sum_of_known(numbers: list[int | None]) -> int | None:
    """Their sum; None where one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _shares(whole: int, feeds: list[Feed]) -> list[int]:
    """The samples of each loader in a step of ``whole`` samples, in proportion to those it would have."""
    sizes = [feed.step_size for feed in feeds]
    total = _sum_of_known(sizes)
    shares = [whole * (size or 0) / total for size in sizes] if total else []
    if not shares or any(share < 1 or share != int(share) for share in shares):
        raise PacelineError(
            "global_batch_size cannot be met: each of several training loaders has its part in proportion "
            "to its batch size",
            code="batch-cannot-be-cut",
            got=f"global_batch_size={whole}, and {sizes} samples in a step of each",
            fix=f"a multiple of {total}" if total else "leave global_batch_size out",
        )
    return [int(share) for share in shares]
