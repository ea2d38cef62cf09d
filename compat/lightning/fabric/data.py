"""What ``Fabric.setup_dataloaders`` returns: a loader in exact order, each rank with its part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ....errors import PacelineError
from ....strategies import Collectives
from ....trainer.data.device_transfer import make_transfer
from ....trainer.data.feed import FeedSettings
from ....trainer.data.map_feed import MapFeed


class FabricDataLoader:
    """A ``DataLoader`` whose pass number n is epoch n in the Trainer's order; attributes are the loader's.

    A step takes ``batch_size`` samples for each rank: the same ones as one process takes with a batch size
    as large. The last step of an epoch may be shorter; all ranks have the same number of batches.

    In the state of ``Fabric.save`` a loader keeps its place: after ``Fabric.load`` the next pass continues
    with the first sample that was not used.

    Args:
        loader: The user's.
        ranks: Among whom samples are divided; None: every rank reads all that the loader gives.
        device: Where batches are brought to; None leaves them.

    Attributes:
        loss_weight: What the loss of the last batch is multiplied by, so that the gradient is that of all
            samples of the step: 1.0 where each rank has as many, 0.0 where this one has none (and got one
            that another rank has). ``fabric.backward(loss * loader.loss_weight)``

    Example:
        >>> from paceline.compat.lightning.fabric import Fabric
        >>> loader = Fabric(accelerator="cpu").setup_dataloaders(DataLoader(range(5), batch_size=2))
        >>> [batch.tolist() for batch in loader], loader.loss_weight
        ([[0, 1], [2, 3], [4]], 1.0)
    """

    def __init__(
        self, loader: DataLoader[Any], ranks: Collectives | None, device: torch.device | None
    ) -> None:
        self._dataloader, self._ranks = loader, ranks
        self._transfer = None if device is None else make_transfer(device, None)
        self._feed: MapFeed | None = None
        self._epoch, self._position, self._continues = -1, 0, False
        self.device, self.loss_weight = device, 1.0
        if ranks is not None and not isinstance(loader.dataset, IterableDataset):
            seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
            settings = FeedSettings(seed=seed, ranks=ranks, transfer=self._transfer)
            self._feed = MapFeed(loader, settings)

    def __len__(self) -> int:
        """Batches of a rank in an epoch."""
        steps = None if self._feed is None else self._feed.steps_per_epoch
        return len(self._dataloader) if steps is None else steps

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that was loaded."""
        if not self._continues:
            self._epoch, self._position = self._epoch + 1, 0
        self._continues = False
        if self._feed is None:
            yield from self._as_it_is()
            return
        assert self._ranks is not None
        for step in self._feed.steps(self._epoch, self._position):
            self._position += step.advance
            total = step.total or sum(step.sizes) * self._ranks.data_world_size
            self.loss_weight = sum(step.sizes) * self._ranks.data_world_size / total
            yield from step.batches
        self._position = 0

    def _as_it_is(self) -> Iterator[Any]:
        loader: Any = self._dataloader
        for owner in (loader.sampler, loader.batch_sampler, loader.dataset):
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(self._epoch)
        for batch in self._dataloader:
            yield batch if self._transfer is None else self._transfer(batch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, from 0, and how many of its samples all ranks have used."""
        theirs = getattr(self._dataloader, "state_dict", None)
        own = {"epoch": self._epoch, "position": self._position}
        return own if theirs is None else own | {"loader": theirs()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called.

        Args:
            state: What it returned.

        Raises:
            PacelineError: within an epoch of a loader that cannot continue there.
        """
        self._epoch, self._position = state["epoch"], state["position"]
        self._continues = self._position > 0
        if "loader" in state:
            self._dataloader.load_state_dict(state["loader"])  # type: ignore[attr-defined]
        elif self._continues and self._feed is None:
            raise PacelineError(
                "this loader has no place to continue from within an epoch",
                code="data-read-once",
                got=type(self._dataloader).__name__,
                fix="setup_dataloaders(loader) with a dataset that has a length",
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataloader":
            raise AttributeError(name)
        return getattr(self._dataloader, name)
