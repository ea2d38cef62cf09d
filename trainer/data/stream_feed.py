"""Steps of anything that can only be iterated: IterableDataset loaders, lists of batches, generators."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from ...errors import PacelineError
from ...strategies.ranks.comparison import gather_alike, same_everywhere
from ..rng import deriver, order_seed, seed_for_sample
from ..utils.nested import checksum, count_samples
from .batch_plan import BatchSizes, split
from .feed import Feed, FeedSettings, MicroBatches, limited, refuse_global_batch
from .fingerprint import content_of_mixture
from .mixtures.mixture_stream import MixtureStream, StatefulMixtureStream
from .read_errors import name_sample
from .seeded_loader import Source, private_copy
from .seeded_stream import SeededStream
from .stream_steps import Cursor, Isolation, OwnSteps, SharedSteps, StreamSteps
from .workers.loader_reader import Reader, open_reader
from .workers.worker_processes import WorkerProcesses, processes_of
from .workers.worker_tensors import send_small_by_value


class StreamFeed(Feed):
    """Takes batches as they come and deals them out: micro-batch by micro-batch, rank by rank.

    Every rank reads all of the data, so the samples of a step are the same on any number of ranks. Data
    that each rank reads another part of (it shards itself) is found by its first batch: there a rank's
    batches are its own, and what the others have left is asked in each step.

    A loader over an IterableDataset can be asked for other batch sizes, so ``global_batch_size`` holds
    there. Resuming uses the source's own ``state_dict`` where it has one, and reads forward elsewhere.
    """

    def __init__(self, source: Any, settings: FeedSettings) -> None:
        super().__init__(settings)
        self.data = self._source = source
        self._ready = isinstance(source, (list, tuple))
        self._on_device = settings.transfer is None and settings.hooked_transfer is None
        self._loader = isinstance(source, DataLoader)
        self._drop_last = bool(getattr(source, "drop_last", False))
        self.micro_batches = settings.accumulate * settings.simulated_ranks
        self._in_step = self.micro_batches * settings.ranks.data_world_size  # batches, over all ranks
        self._sizes: list[int] = []  # of those batches, where the loader can be asked for them
        self._seeded: SeededStream | None = None
        self._workers: WorkerProcesses | None = None
        if self._loader:
            self._source = self._copy(source)
            self._workers = processes_of(self._source)
        else:
            refuse_global_batch(settings, "the batches come ready made")
        limit = settings.limit
        if settings.limit_per_rank and isinstance(limit, int):
            limit *= settings.ranks.data_world_size * settings.simulated_ranks
        try:
            batches: int | None = limited(len(source), limit)
        except (TypeError, NotImplementedError):
            if isinstance(limit, float):
                raise PacelineError(
                    "a part of the data was asked for, but the data has no length",
                    code="run-length-unknown",
                    got=f"a limit of {limit}",
                    fix="limit it by a count of batches (an int)",
                ) from None
            batches = limit
        # len() is a forecast: workers' tails and a global batch make other batches than it counts.
        self._batches = batches if self._ready or limit is not None else None
        self._most_samples: int | None = None
        if self._sizes and self._batches is not None:  # batches of another size than the loader's own
            self._most_samples, self._batches = self._batches * source.batch_size, None
        self.steps_per_epoch = self._forecast(batches)
        self._restored: dict[str, Any] | None = None
        self._said: set[str] = set()
        self._beginning: Any = None
        self._state: dict[str, Any] = {}
        self._reader: Reader | None = None

    def _forecast(self, batches: int | None) -> int | None:
        if batches is None:
            return None
        pieces, size = batches, self._in_step
        if self._sizes:
            size = sum(self._sizes)
            lengths = [self._most_samples] if self._most_samples is not None else []
            with contextlib.suppress(TypeError, NotImplementedError):  # the loader alone may have a length
                lengths.append(len(self.data.dataset))
            if not lengths:
                return None
            pieces = min(lengths)
        return pieces // size if self._drop_last else -(-pieces // size)

    def _copy(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        duplicate = private_copy(loader)
        wanted, size = self.settings.global_batch, loader.batch_size
        world_size = self.settings.ranks.data_world_size
        if size is None:
            refuse_global_batch(self.settings, "the dataset makes the batches")
        else:
            self.step_size = wanted or size * self._in_step
        if wanted is not None and size is not None:
            simulated_ranks = self.settings.simulated_ranks
            self.micro_batches = -(-wanted // (size * world_size * simulated_ranks)) * simulated_ranks
            self._sizes = split(wanted, self.micro_batches * world_size)
            if loader.num_workers > 1:  # which worker reads a sample must not depend on the ranks
                self._sizes = [size] * (wanted // size) + [wanted % size] * (wanted % size > 0)
            self._in_step = len(self._sizes)
            vars(duplicate)["batch_sampler"] = Source()
        if not hasattr(loader, "state_dict"):  # one that keeps its own position does all by itself
            sizes = BatchSizes((size or 1,))
            stream = SeededStream(loader.dataset, self.settings.seed, sizes, loader.num_workers)
            vars(duplicate)["dataset"] = self._seeded = stream
        send_small_by_value(duplicate)
        return duplicate

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        if self.settings.fixed_order:
            epoch = 0
        for owner in (self.data, getattr(self.data, "dataset", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        self.ended = False
        alone = self._in_step == self.settings.ranks.data_world_size == 1
        if self._ready and alone and self._on_device:
            return self._ready_steps(position)
        return self._read_steps(epoch, position)

    def _read_steps(self, epoch: int, position: int) -> Iterator[MicroBatches]:
        restored, self._restored = self._restored, None
        spent = bool(position and restored and restored.get("spent"))
        handed_out = samples = 0
        if restored is not None:
            self._state = restored
            if not spent:
                self._keeper().load_state_dict(restored["source"])
            if position:
                handed_out, samples = restored["batches"], restored["samples"]
        elif self.settings.fixed_order and self._keeper() is not None:
            self._rewind()
        with contextlib.closing(self._begin(epoch, samples)) as batches:
            cursor = Cursor(batches, self._batches, self._isolation(epoch), handed_out, samples)
            steps = self._steps_over(cursor, epoch)
            if spent and restored is not None:
                steps.finish()
                self._keeper().load_state_dict(restored["source"])  # where the next epoch begins
            if position and restored is None:
                self._pass_over(position, cursor, steps)
            upcoming, keeper = steps.gather(), self._keeper()
            while upcoming.batches and not (self._drop_last and steps.short):
                # Read one step ahead, to know the epoch's last one; the source's state is that of before.
                current, state = upcoming, self._state_now(keeper, cursor, steps)
                upcoming = steps.gather()
                self.ended = not upcoming.batches or (self._drop_last and steps.short)
                self._state = self._state_now(keeper, cursor, steps) if self.ended else state
                if self.settings.hooked_transfer is not None:  # hooks see the run at their own step
                    moved = [self._moved(batch, epoch, number) for batch, number in current.batches]
                    current = current._replace(batches=moved)
                try:
                    yield current
                except GeneratorExit:
                    if not (self.ended or self.settings.fixed_order) and self._state:
                        self._restored = self._state  # what was read ahead comes again
                    raise

    def _ready_steps(self, position: int) -> Iterator[MicroBatches]:
        """Batches that are in memory and on the device: returned as they are."""
        passed = 0
        last = (self._batches or 0) - 1
        for number, batch in enumerate(islice(self._source, self._batches)):
            size = count_samples(batch)
            if passed < position:
                passed += size
                continue
            self.ended = number == last
            yield MicroBatches([batch], [size], size, size)

    def _rewind(self) -> None:
        """Evaluation reads the same each time, though a pass before may have been broken off."""
        keeper = self._keeper()
        if isinstance(keeper, StatefulMixtureStream):  # which may have been read before this feed was made
            keeper.restart()
        elif self._beginning is None:
            self._beginning = copy.deepcopy(keeper.state_dict())
        else:
            keeper.load_state_dict(copy.deepcopy(self._beginning))

    def _begin(self, epoch: int, samples: int) -> Generator[Any, None, None]:
        """The source's own iteration; it begins at the first read, under that read's seed.

        ``samples`` is the position in the epoch, in samples.
        """
        if self._loader:
            self._source.generator.manual_seed(order_seed(self.settings.seed, epoch))
        if self._sizes:
            left = None if self._most_samples is None else self._most_samples - samples
            sizes = BatchSizes(tuple(self._sizes), left)
            self._source.batch_sampler.make = lambda: ([None] * size for size in sizes)
            if self._seeded is not None:
                self._seeded.sizes = sizes
        if self._seeded is not None:
            self._seeded.begin(epoch, samples)
        return self._reads()

    def _reads(self) -> Generator[Any, None, None]:
        self._reader = reader = open_reader(self._source, self.settings.signals, self._workers)
        try:
            yield from reader
        except Exception as error:
            name_sample(error, reader.ended, lambda worker: "while reading its part of the stream")
            raise
        finally:
            reader.close(for_good=False)

    def _steps_over(self, cursor: Cursor, epoch: int) -> StreamSteps:
        """See whether all ranks read the same, or each its part.

        Raises:
            PacelineError: when there is no part for a rank, or parts cannot make up the global batch.
        """

        def moved(batch: Any, number: int) -> Any:
            hooked = self.settings.hooked_transfer is not None
            return (batch, number) if hooked else self._moved(batch, epoch, number)

        shared = SharedSteps(cursor, self.settings, moved, self._in_step)
        if self.settings.ranks.world_size == 1:
            return shared
        first = cursor.peek()
        mine = None if first is None else checksum(first[0])
        if same_everywhere(self.settings.ranks, mine):
            return shared
        found = gather_alike(self.settings.ranks, mine)
        if None in found:
            raise PacelineError(
                "each rank reads its own part of the data, and some ranks have none",
                code="ranks-read-differently",
                got=f"no batch on rank {found.index(None)}",
                fix="make at least as many shards as ranks, or let all ranks read all of it: each takes "
                "its own batches of it",
            )
        even = self.micro_batches * self.settings.ranks.data_world_size
        if self._sizes and self._sizes != [self._sizes[0]] * even:
            raise PacelineError(
                "global_batch_size cannot be met: each rank reads its own part of the data, "
                "and the parts would not be even",
                code="batch-cannot-be-cut",
                got=f"global_batch_size={sum(self._sizes)} on {self.settings.ranks.data_world_size} ranks",
                fix="a multiple of the ranks times the loader's batch_size",
            )
        self._say_once(
            "each rank reads its own part of the data: the first batches differ (if they should not, seed "
            "the random draws of the data)"
        )
        return OwnSteps(cursor, self.settings, moved, self.micro_batches)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.settings.log_line(line)

    def _isolation(self, epoch: int) -> Isolation:
        seed_of, before = deriver(self.settings.seed, epoch), self._reader

        def of(number: int) -> Callable[[], None] | None:
            reader = self._reader  # of this pass from its first read on, whose ``__iter__`` may draw
            if self._ready or (reader is not None and reader is not before and reader.in_memory):
                return None
            return partial(seed_for_sample, seed_of(number))

        return of

    def _pass_over(self, position: int, cursor: Cursor, steps: StreamSteps) -> None:
        """Read forward, batch by batch: the steps before may have taken another number of them."""
        done = 0
        while done < position and (moved := steps.skip()):
            done += moved
        if not self._ready:
            self.settings.log_line(
                f"dataset is not stateful; skipped {cursor.handed_out} batches to resume"
            )

    def _keeper(self) -> Any:
        """Who keeps a position that can be saved: the loader, or its dataset read in this process."""
        dataset = getattr(self.data, "dataset", None)
        here = getattr(self._source, "num_workers", 0) == 0
        for owner in (self._source, dataset if here else None):
            if hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict"):
                return owner
        return None

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def _state_now(self, keeper: Any, cursor: Cursor, steps: StreamSteps) -> dict[str, Any]:
        self._warn_read_by_each()
        if keeper is None:
            return {}
        state = {
            "source": keeper.state_dict(),
            "batches": cursor.handed_out,
            "samples": cursor.samples,
        }
        return state | ({"own_part": True, "spent": cursor.spent} if steps.own_part else {})

    def _warn_read_by_each(self) -> None:
        if self._seeded is not None and self._seeded.read_by_each:
            self._say_once(
                f"{type(self._seeded.inner).__name__} is not sharded by worker: each of "
                f"{self._source.num_workers} workers reads the full stream and keeps its own batches"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self._keeper() is not None:
            self._restored = state

    def fingerprint(self) -> dict[str, Any]:
        dataset = getattr(self.data, "dataset", self.data)
        content = content_of_mixture(dataset) if isinstance(dataset, MixtureStream) else {}
        return {"dataset": type(dataset).__name__} | content

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
