"""A mixture with datasets that can only be iterated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from ....errors import PacelineError
from ...rng import derive
from .mixture_datasets import checked_datasets, is_stream, keeps_position, order_of, set_epoch_of
from .shares import Shares

_PASSES = 1 << 20  # epochs apart are the numbers by which a stream knows its passes


class _Source:
    """One dataset of the mixture: which pass over it is under way in this epoch, and how far that is.

    A dataset with indices is gone through in a random order.

    Args:
        beginning: The state in which a pass begins, of a dataset that keeps its position.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int, beginning: Any) -> None:
        self._dataset, self._seed, self._epoch, self._beginning = dataset, seed, epoch, beginning
        self._order = None if is_stream(dataset) else order_of(len(dataset))
        self._passes = self._read = 0
        self._begun_with: Any = None  # the dataset's state, until it has given a sample
        self._samples: Iterator[Any] = self._begun(beginning)

    def _begun(self, state: Any) -> Iterator[Any]:
        """What is left of the pass, ``state`` being the dataset's own where it keeps its position."""
        set_epoch_of(self._dataset, self._epoch + self._passes * _PASSES)
        if self._order is not None:
            order = self._order(derive(self._seed, self._epoch, self._passes))
            return (self._dataset[int(index)] for index in order[self._read :])
        if keeps_position(self._dataset):  # else it might continue where an epoch has left it
            self._dataset.load_state_dict(copy.deepcopy(state))
            self._begun_with = state
        return iter(self._dataset)

    def take(self) -> Any:
        """The next sample; a dataset that has ended begins again.

        Raises:
            PacelineError: when it is empty.
        """
        while True:
            try:
                sample = next(self._samples)
            except StopIteration:
                if not self._read:
                    raise PacelineError(
                        "a dataset of the Mixture gave no sample",
                        code="mixture-dataset",
                        got=f"a {type(self._dataset).__name__}, in pass {self._passes + 1} over it",
                        fix="a dataset that can be iterated more than once: not a generator",
                    ) from None
                self._passes, self._read = self._passes + 1, 0
                self._samples = self._begun(self._beginning)
            else:
                self._read += 1
                self._begun_with = None
                return sample

    def state_dict(self) -> dict[str, Any]:
        """What ``resume`` takes."""
        own = self._begun_with  # many know it again from their next sample on only
        if own is None and self._order is None:
            own = self._dataset.state_dict()
        return {"passes": self._passes, "read": self._read, "own": copy.deepcopy(own)}

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        self._passes, self._read = saved["passes"], saved["read"]
        self._samples = self._begun(saved["own"])


class MixtureStream(IterableDataset[Any]):
    """What ``Mixture`` gives where one of the datasets can only be iterated; its arguments are the same.

    A dataset that shards itself among loader workers is refused with two or more of them.

    Example:
        >>> from torch.utils.data import IterableDataset
        >>> class Numbers(IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(3))
        >>> mixture = Mixture({Numbers(): 2, (10, 11): 1}, samples=9)
        >>> [sample for sample in mixture if sample < 10]
        [0, 1, 2, 0, 1, 2]
    """

    def __init__(self, datasets: Any, samples: int | None = None, seed: int = 0) -> None:
        self.datasets, self.weights = checked_datasets(datasets, samples, seed)
        self.samples, self.seed, self._epoch = samples, seed, 0
        self._shares = Shares(self.weights)
        self._beginnings = [
            copy.deepcopy(dataset.state_dict()) if is_stream(dataset) and keeps_position(dataset) else None
            for dataset in self.datasets
        ]
        self._sources: list[_Source] = []
        self._taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Be the samples of this epoch from the next iteration on; the trainer calls it.

        Args:
            epoch: From 0.
        """
        self._epoch = epoch

    def __len__(self) -> int:
        if self.samples is None:
            raise TypeError("this mixture of streams has no end: it was given no number of samples")
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        return self._given()

    def _given(self) -> Iterator[Any]:
        while self._taken != self.samples:
            number, _ = self._shares.at(self._taken)
            sample = self._sources[number].take()
            self._taken += 1
            yield sample

    def _begin(self) -> None:
        self._sources = [
            _Source(dataset, derive(self.seed, number), self._epoch, beginning)
            for number, (dataset, beginning) in enumerate(zip(self.datasets, self._beginnings, strict=True))
        ]
        self._taken = 0

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_sources": []}


class StatefulMixtureStream(MixtureStream):
    """A ``MixtureStream`` of datasets that all keep their position, so that it keeps its own.

    Other streams are read forward by the trainer: what they draw then depends on each sample's position.
    """

    _restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is, as plain data if that of the datasets is."""
        if self._restored is not None:
            return self._restored
        sources = [source.state_dict() for source in self._sources]
        return {"epoch": self._epoch, "taken": self._taken, "sources": sources}

    def restart(self) -> None:
        """Begin the epoch in the next iteration, whatever was loaded or read before."""
        self._restored = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there in the next iteration, if that is of the same epoch.

        Args:
            state: From ``state_dict``.
        """
        self._restored = state

    def _begin(self) -> None:
        super()._begin()
        restored, self._restored = self._restored, None
        if restored is not None and restored["epoch"] == self._epoch and restored["sources"]:
            self._taken = restored["taken"]
            for source, saved in zip(self._sources, restored["sources"], strict=True):
                source.resume(saved)
