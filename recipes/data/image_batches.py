"""Small images read by the batch: shifted and mirrored by tables, where others draw sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import DataModule
from paceline.recipes.data.images import normalised


class ImageBatches(Dataset[tuple[Tensor, Tensor]]):
    """Images (n, 3, height, width) of uint8 and their labels; one epoch's shifts are a table.

    What happens to a sample depends on the epoch and its index alone, so it is the same in any batch and on
    any rank. A batch is read in a few operations, on the device where the images are.

    Args:
        images: Pixels.
        labels: Of each image.
        mean: The mean of each channel, of pixels from 0 to 1.
        std: The standard deviation of each channel, likewise.
        shift: Shift by up to so many pixels, the border reflected; 0 for none.
        flip: Mirror each image in every second epoch: half of them in the first, the others in the next
            (Jordan, 2024, arXiv:2404.00498).
        seed: Of the tables.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        mean: list[float],
        std: list[float],
        shift: int = 0,
        flip: bool = False,
        seed: int = 0,
    ) -> None:
        self.images, self.labels = normalised(torch.from_numpy(images), mean, std), torch.from_numpy(labels)
        self.shift, self.flip, self.seed = shift, flip, seed
        self.set_epoch(0)

    def to(self, device: torch.device | str) -> ImageBatches:
        """Keep all of it on a device; itself."""
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw the tables of an epoch."""
        draw, count = torch.Generator().manual_seed(self.seed), len(self.labels)
        self.mirrored = torch.randint(2, (count,), generator=draw) == epoch % 2
        draw.manual_seed(self.seed + 1 + epoch)
        self.shifts = torch.randint(2 * self.shift + 1, (count, 2), generator=draw)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A batch: images (len(indices), 3, height, width), labels."""
        chosen = torch.tensor(indices)
        images, labels = self.images[chosen], self.labels[chosen]
        if self.shift:
            down, right = self.shifts[chosen].unbind(1)
            height, width = images.shape[2:]
            padded = F.pad(images, [self.shift] * 4, mode="reflect")
            views = padded.unfold(2, height, 1).unfold(3, width, 1)
            images = views[torch.arange(len(chosen)), :, down, right]
        if self.flip:
            mirrored = self.mirrored[chosen].to(images.device).view(-1, 1, 1, 1)
            images = torch.where(mirrored, images.flip(3), images)
        return images, labels


class ImageData(DataModule):
    """Loaders over ``ImageBatches``.

    Args:
        on_device: Keep all images in the memory of the accelerator.
    """

    def __init__(
        self, train: ImageBatches, val: ImageBatches, batch_size: int, on_device: bool = False
    ) -> None:
        self.train, self.val, self.batch_size, self.on_device = train, val, batch_size, on_device

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        return self._loader(self.train, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        return self._loader(self.val)

    def _loader(self, data: ImageBatches, **options: Any) -> DataLoader[tuple[Tensor, Tensor]]:
        if self.on_device:
            data.to(self.trainer.strategy.device)
        return DataLoader(data, self.batch_size, collate_fn=_as_it_is, **options)


def _as_it_is(batch: Any) -> Any:
    return batch
