"""Steps of anything that can only be iterated: IterableDataset loaders, lists of batches, generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

from torch.utils.data import DataLoader

from ..errors import PacelineError
from .batch import count_samples
from .feed import Feed, FeedSettings, Step, limited, refuse_global_batch
from .order import split
from .rng import derive, order_seed, seed_for_sample
from .sampling import Source, end_workers, private_copy


class StreamFeed(Feed):
    """Takes batches as they come; a step is ``accumulate`` of them.

    A loader over an IterableDataset can be asked for other batch sizes, so ``global_batch_size`` holds
    there. Resuming uses the source's own ``state_dict`` where it has one, and reads forward elsewhere.
    """

    def __init__(self, source: Any, settings: FeedSettings) -> None:
        super().__init__(settings)
        self._source = source
        self._ready = isinstance(source, (list, tuple))
        self._loader = isinstance(source, DataLoader)
        self._drop_last = bool(getattr(source, "drop_last", False))
        self.micro_batches = settings.accumulate
        if self._loader:
            self._source = self._copy(source)
        else:
            refuse_global_batch(settings, "the batches come ready made")
        try:
            batches: int | None = limited(len(source), settings.limit)
        except (TypeError, NotImplementedError):
            if isinstance(settings.limit, float):
                raise PacelineError(
                    "a part of the data was asked for, but the data has no length",
                    got=f"a limit of {settings.limit}",
                    fix="limit it by a count of batches (an int)",
                ) from None
            batches = settings.limit
        # len() is a forecast: workers' tails and a global batch make other batches than it counts.
        self._batches = batches if self._ready or settings.limit is not None else None
        self.steps_per_epoch = self._forecast(batches)
        self._users = source
        self._restored: dict[str, Any] | None = None
        self._handed_out = 0
        self._state: dict[str, Any] = {}

    def _forecast(self, batches: int | None) -> int | None:
        if batches is None:
            return None
        pieces, size = batches, self.micro_batches * self.settings.world
        if self.settings.global_batch is not None and self.settings.limit is None:
            pieces, size = len(self._source.dataset), self.settings.global_batch
        return pieces // size if self._drop_last else -(-pieces // size)

    def _copy(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        duplicate = private_copy(loader)
        wanted, size = self.settings.global_batch, loader.batch_size
        if size is None:
            refuse_global_batch(self.settings, "the dataset makes the batches")
            return duplicate
        world = self.settings.world
        self.step_size = wanted or size * self.settings.accumulate * world
        if wanted is not None:
            self.micro_batches = -(-wanted // (size * world))
            sizes = split(wanted, self.micro_batches * world)
            source = Source()
            source.make = lambda: ([None] * size for size in cycle(sizes))
            vars(duplicate)["batch_sampler"] = source
        return duplicate

    def steps(self, epoch: int, position: int = 0) -> Iterator[Step]:
        if self.settings.fixed_order:
            epoch = 0
        set_epoch = getattr(getattr(self._users, "dataset", self._users), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        self.ended = False
        self._handed_out = 0
        alone = self.micro_batches == self.settings.world == 1
        if self._ready and alone and self.settings.transfer is None:
            return self._ready_steps(position)
        return self._read_steps(epoch, position)

    def _read_steps(self, epoch: int, position: int) -> Iterator[Step]:
        if self._loader:
            self._source.generator.manual_seed(order_seed(self.settings.seed, epoch))
        iterator = self._iterate()
        self._go_to(epoch, position, iterator)
        upcoming = self._gather(iterator, epoch)
        while self._is_step(upcoming):
            # Read one step ahead, to know the epoch's last one; the source's state is that of before.
            current, self._state = upcoming, self._state_now()
            upcoming = self._gather(iterator, epoch)
            self.ended = not self._is_step(upcoming)
            if self.ended:
                self._state = self._state_now()
            yield current

    def _is_step(self, gathered: Step) -> bool:
        batches = gathered[0]
        return bool(batches) and not (self._drop_last and len(batches) < self.micro_batches)

    def _ready_steps(self, position: int) -> Iterator[Step]:
        """Batches that are in memory and on the device: handed out with nothing done to them."""
        passed = 0
        last = (self._batches or 0) - 1
        for number, batch in enumerate(islice(self._source, self._batches)):
            size = count_samples(batch)
            if passed < position:
                passed += size
                continue
            self.ended = number == last
            yield [batch], [size], size, size

    def _iterate(self) -> Iterator[Any]:
        """The source's own iteration, begun at the first read: under that read's seed."""
        yield from iter(self._source)

    def _gather(self, iterator: Iterator[Any], epoch: int) -> Step:
        """This rank's micro-batches of a step, their sizes, and the samples of all ranks in it.

        All ranks read all batches, so all know the same. One left without gets the first, of size 0.
        """
        rank, world = self.settings.rank, self.settings.world
        batches: list[Any] = []
        sizes: list[int] = []
        total = count = 0
        first = None
        while count < self.micro_batches * world and self._handed_out != self._batches:
            try:
                batch = self._read(iterator, self._isolate(epoch))
            except StopIteration:
                break
            self._handed_out += 1
            size = count_samples(batch)
            first = batch if not count else first
            if count % world == rank:
                batches.append(batch)
                sizes.append(size)
            total, count = total + size, count + 1
        if len(batches) < -(-count // world):
            batches.append(first)
            sizes.append(0)
        return batches, sizes, total, total

    def _isolate(self, epoch: int) -> Callable[[], None] | None:
        if self._ready:
            return None
        seed = derive(self.settings.seed, epoch, self._handed_out)
        return lambda: seed_for_sample(seed)

    def _go_to(self, epoch: int, position: int, iterator: Iterator[Any]) -> None:
        restored, self._restored = self._restored, None
        if restored is not None:
            self._keeper().load_state_dict(restored["source"])
            self._handed_out = restored["batches"] if position else 0
            return
        done = 0
        # Batch by batch: the steps before may have taken another number of them.
        while done < position and self._handed_out != self._batches:
            try:
                done += count_samples(self._read(iterator, self._isolate(epoch)))
            except StopIteration:
                break
            self._handed_out += 1
        if position and not self._ready:
            self.settings.say(
                f"the data keeps no position of its own: read {self._handed_out} batches forward"
            )

    def _keeper(self) -> Any:
        """Who keeps a position that can be saved: the loader, or its dataset read in this process."""
        dataset = getattr(self._source, "dataset", None)
        here = getattr(self._source, "num_workers", 0) == 0
        for owner in (self._source, dataset if here else None):
            if hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict"):
                return owner
        return None

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def _state_now(self) -> dict[str, Any]:
        keeper = self._keeper()
        if keeper is None:
            return {}
        return {"source": keeper.state_dict(), "batches": self._handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self._keeper() is not None:
            self._restored = state

    def fingerprint(self) -> dict[str, Any]:
        return {"dataset": type(getattr(self._users, "dataset", self._users)).__name__}

    def close(self) -> None:
        if self._loader:
            end_workers(self._source)
