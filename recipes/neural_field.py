"""A photograph as a function of the place (Tancik et al., 2020, arXiv:2006.10739): data that memory holds.

paceline fit neural-field                 # a flower at twice the resolution, on a CPU in a minute
paceline fit neural-field photo=my.png preset=large
"""

from __future__ import annotations

import math
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.schedules import Cosine

SHIPPED = ("flower.jpg", "china.jpg")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    photo: str = "flower.jpg"
    """One that scikit-learn has (``flower.jpg``, ``china.jpg``), or the path of a file."""
    waves: PositiveInt = 128
    """Random directions and frequencies by which the network is given a place."""
    frequency: Positive = 8.0
    """The standard deviation of the frequencies: waves along the picture's longer side."""
    width: PositiveInt = 128
    """Numbers in each hidden layer."""
    depth: PositiveInt = 3
    """Hidden layers."""
    epochs: PositiveInt = 140
    """Passes over the pixels that are trained on."""
    batch_size: PositiveInt = 4096
    """Pixels in a step, over all devices."""
    learning_rate: Positive = 5e-3
    """Of Adam, at its highest; a cosine follows."""


PRESETS: dict[str, dict[str, Any]] = {
    "large": {
        "waves": 256,
        "width": 256,
        "frequency": 12,
        "epochs": 2000,
        "batch_size": 16384,
        "learning_rate": 2e-3,
    },
}


class NeuralField(TrainModule):
    """A network of a place (x, y) that gives its colour.

    Validation logs the peak signal-to-noise ratio in dB over all held-out pixels, and the whole picture.

    Args:
        picture: Its height and width, in pixels.
        width: Numbers in each hidden layer.
        depth: Hidden layers.
        waves: Random directions and frequencies.
        frequency: Their standard deviation.
    """

    waves: Tensor

    def __init__(
        self,
        picture: tuple[int, int],
        waves: int = 128,
        frequency: float = 8.0,
        width: int = 128,
        depth: int = 3,
        learning_rate: float = 5e-3,
    ) -> None:
        super().__init__()
        self.register_buffer("waves", torch.randn(2, waves) * frequency * math.pi)
        sizes = [2 * waves, *[width] * depth]
        hidden = [layer for sides in pairwise(sizes) for layer in (nn.Linear(*sides), nn.GELU())]
        self.network = nn.Sequential(*hidden, nn.Linear(sizes[-1], 3))

    def forward(self, places: Tensor) -> Tensor:
        angles = (places[..., None] * self.waves).sum(-2)  # precise under bf16, where a product is not
        colours: Tensor = self.network(torch.cat([angles.sin(), angles.cos()], -1))
        return colours

    def training_step(self, batch: Any) -> Tensor:
        places, colours = batch
        return F.mse_loss(self(places), colours)

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 0:  # within a step, where strategies that shard weights bring them together
            everywhere = places_of(*self.hparams["picture"]).to(self.device, self.waves.dtype)
            rows = [self(row).float() for row in everywhere]
            self.log_image("picture", torch.stack(rows).permute(2, 0, 1))
        return self.training_step(batch)

    def on_validation_end(self, trainer: Any) -> None:
        self.log("val/psnr", -10 * math.log10(trainer.metrics["val/loss"]))

    def configure_optimizers(self) -> Any:
        rate = self.hparams["learning_rate"]
        optimizer = torch.optim.Adam(self.parameters(), rate, betas=(0.9, 0.99))
        return {"optimizer": optimizer, "lr_scheduler": Cosine()}


def places_of(height: int, width: int) -> Tensor:
    """X and y (height, width, 2) of each pixel; the longer side is from -1 to 1."""
    x, y = (torch.arange(size) - (size - 1) / 2 for size in (width, height))
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns, rows], -1) / (max(height, width) / 2)


def pixels_of(photo: str) -> NDArray[np.uint8]:
    """A picture (height, width, 3), with an even number of pixels on each side.

    Raises:
        PacelineError: where there is none.
    """
    path = Path(photo).expanduser()
    if photo in SHIPPED and not path.exists():
        try:
            path = Path(str(files("sklearn.datasets.images") / photo))
        except ImportError:
            raise PacelineError(
                f"photo={photo} needs scikit-learn",
                code="package-missing",
                fix="pip install 'paceline[recipes]'",
            ) from None
    try:
        with Image.open(path) as image:
            pixels = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PacelineError(
            f"photo={photo} cannot be read",
            code="file-unreadable",
            got=str(error),
            fix=f"an image file, or {' or '.join(SHIPPED)}",
        ) from None
    height, width = (size // 2 * 2 for size in pixels.shape[:2])
    if not height or not width:
        raise PacelineError(
            f"photo={photo} is too small",
            code="recipe-settings",
            got=f"{pixels.shape[1]}x{pixels.shape[0]}",
        )
    return pixels[:height, :width]


def datasets(pixels: NDArray[np.uint8]) -> tuple[TensorDataset, TensorDataset]:
    """Every second pixel of every second row to train on, and all others: places (n, 2), colours (n, 3)."""
    colours = torch.from_numpy(pixels).float() / 255
    places = places_of(*pixels.shape[:2])
    known = torch.zeros(pixels.shape[:2], dtype=torch.bool)
    known[::2, ::2] = True
    return TensorDataset(places[known], colours[known]), TensorDataset(places[~known], colours[~known])


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    trainer = config.make_trainer(
        name="neural-field",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        validate_every="20ep",
        callbacks=[Checkpoint(monitor="val/psnr")],
    )
    pixels = pixels_of(config.photo)
    torch.manual_seed(trainer.settings.seed)
    module = NeuralField(
        pixels.shape[:2],
        config.waves,
        config.frequency,
        config.width,
        config.depth,
        config.learning_rate,
    )
    train, val = datasets(pixels)
    return Experiment(
        trainer,
        module,
        train=DataLoader(train, config.batch_size, shuffle=True),
        val=DataLoader(val, config.batch_size),
    )
