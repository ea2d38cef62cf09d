"""Several datasets as one, each with its share of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from ....errors import PacelineError
from ...rng import derive
from .mixture_datasets import checked_datasets, is_stream, keeps_position, order_of, set_epoch_of, weighted
from .mixture_stream import MixtureStream, StatefulMixtureStream
from .shares import Shares


class Mixture(Dataset[Any]):
    """Several datasets as one dataset, sampled in proportion to their weights, in a deterministic order.

    Among the first n samples, a dataset has its share of n to within one sample; shares that are not ratios
    of small numbers are rounded to 1e-4. Each dataset is shuffled once per pass over it: where epochs are
    read whole, no sample is repeated before all samples of its dataset were used, also across epochs. The
    sample at a position depends on the position, the epoch and ``seed`` alone, so the order is the same on
    any number of ranks and workers, and after a resume.

    With an ``IterableDataset`` among the datasets the mixture is one itself (``MixtureStream``): streams
    are read from the beginning in each epoch, and again when they end.

    Args:
        datasets: A dict of weights by dataset, or pairs of dataset and weight where a dataset is not
            hashable. Weights are above 0 and need not sum to 1.
        samples: Samples per epoch. None: the sum of the datasets' lengths; with streams, an epoch without
            end.
        seed: For shuffling the datasets.

    Raises:
        PacelineError: for anything but datasets with samples, and for weights that are not above 0.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> web, books = list(range(100)), list(range(100, 110))
        >>> mixture = Mixture([(web, 0.7), (books, 0.3)])
        >>> [mixture[k] >= 100 for k in range(10)]
        [False, True, False, False, False, True, False, False, True, False]
        >>> loader = DataLoader(mixture, batch_size=32)  # shuffled already
    """

    datasets: list[Any]
    weights: list[float]
    samples: int
    seed: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A ``MixtureStream`` where one of the datasets can only be iterated."""
        if cls is not Mixture:
            return super().__new__(cls)
        given = args[0] if args else kwargs.get("datasets", ())
        streams = [dataset for dataset in weighted(given)[0] if is_stream(dataset)]
        if not streams:
            return super().__new__(cls)
        kind = StatefulMixtureStream if all(map(keeps_position, streams)) else MixtureStream
        return kind(*args, **kwargs)

    def __init__(
        self,
        datasets: Mapping[Any, float] | Sequence[tuple[Any, float]],
        samples: int | None = None,
        seed: int = 0,
    ) -> None:
        self.datasets, self.weights = checked_datasets(datasets, samples, seed)
        if any(map(is_stream, self.datasets)):  # given to a subclass
            raise PacelineError(
                f"{type(self).__name__} takes datasets with indices",
                code="mixture-dataset",
                got="one that can only be iterated",
                fix="Mixture itself, or a subclass of MixtureStream",
            )
        self.samples = sum(map(len, self.datasets)) if samples is None else samples
        self.seed, self._epoch = seed, 0
        self._shares = Shares(self.weights)
        self._order = [order_of(len(dataset)) for dataset in self.datasets]

    def set_epoch(self, epoch: int) -> None:
        """Be the samples of this epoch; the trainer calls it.

        Args:
            epoch: From 0.
        """
        self._epoch = epoch
        for dataset in self.datasets:
            if not isinstance(dataset, Mixture):  # which is set to the pass over it
                set_epoch_of(dataset, epoch)

    def __len__(self) -> int:
        return self.samples

    def locate(self, position: int) -> tuple[int, int]:
        """Which dataset a sample of this epoch is of, and its index there.

        Args:
            position: In the epoch, from 0.

        Example:
            >>> mixture = Mixture([(["a"], 1), (["b", "c"], 1)])
            >>> [number for number, index in map(mixture.locate, range(4))]
            [0, 1, 0, 1]
        """
        number, _, index = self._find(position)
        return number, index

    def _find(self, position: int) -> tuple[int, int, int]:
        """The dataset, the pass over it, and the index."""
        if not 0 <= position < self.samples:
            raise IndexError(position)
        number, before = self._shares.at(self._epoch * self.samples + position)
        passed, place = divmod(before, len(self.datasets[number]))
        return number, passed, int(self._order[number](derive(self.seed, number, passed))[place])

    def __getitem__(self, position: int) -> Any:
        number, passed, index = self._find(position)
        dataset = self.datasets[number]
        if isinstance(dataset, Mixture):
            dataset.set_epoch(passed)
        try:
            return dataset[index]
        except Exception as error:
            error.add_note(f"which is index {index} of dataset {number} of the mixture")
            raise

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._order = [order_of(len(dataset)) for dataset in self.datasets]
