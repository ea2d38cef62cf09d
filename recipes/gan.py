"""A GAN (Goodfellow et al., 2014, arXiv:1406.2661) of images by class: manual optimization.

paceline fit gan                          # CIFAR-10
paceline fit gan preset=tiny              # handwritten digits, on a CPU in a minute
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader

from paceline.callbacks import EMA, Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.generated import CLASSES, ClassGenerator, NoisyImages, images_by_class, scaled

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    data: Literal["auto", "cifar10", "digits"] = "auto"
    """``auto``: CIFAR-10 where its files exist or can be downloaded, else scikit-learn's digits."""
    data_dir: Path = Path("data")
    """Where the files of CIFAR-10 are, or are downloaded to."""
    width: PositiveInt = 128
    """Channels at the images' full size; they double where the size halves. A multiple of 8."""
    latent: PositiveInt = 128
    """Random numbers that an image is made from."""
    average: Annotated[float, Field(ge=0, le=1)] = 0.999
    """What remains of the averaged weights in a step; validations use them."""
    per_class: PositiveInt = 100
    """Images of each class that a validation generates."""
    epochs: PositiveInt = 500
    """Passes over the training data."""
    batch_size: PositiveInt = 128
    """Images in a step, over all devices."""
    workers: int = Field(default=8, ge=0)
    """Processes that read, for each rank."""
    generator_rate: Rate = 2e-4
    """The learning rate of the generator's Adam."""
    critic_rate: Rate = 2e-4
    """Likewise of the discriminator's."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "data": "digits",
        "width": 32,
        "latent": 16,
        "average": 0.99,
        "epochs": 50,
        "batch_size": 64,
        "workers": 0,
        "generator_rate": 1e-3,
        "critic_rate": 2e-3,
    },
}


class Network(nn.Module):
    """Images (n, channels, size, size) from -1 to 1, of numbers (n, latent) and classes (n).

    Args:
        size: 4 times a power of two.
    """

    def __init__(self, latent: int, width: int, channels: int, size: int) -> None:
        super().__init__()
        widest = width * size // 4
        self.classes = nn.Embedding(CLASSES, latent)
        self.first = nn.Linear(2 * latent, widest * 16)
        layers: list[nn.Module] = [nn.GroupNorm(8, widest), nn.ReLU()]
        while widest > width:
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(widest, widest // 2, 3, padding=1)]
            widest //= 2
            layers += [nn.GroupNorm(8, widest), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1), nn.Tanh())

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        small = self.first(torch.cat([noise, self.classes(labels)], 1)).unflatten(1, (-1, 4, 4))
        images: Tensor = self.layers(small)
        return images


class Critic(nn.Module):
    """How real images (n, channels, size, size) of classes (n) look: (n).

    Spectral normalization (Miyato et al., 2018, arXiv:1802.05957) and projection of the class (Miyato and
    Koyama, 2018, arXiv:1802.05637).
    """

    def __init__(self, width: int, channels: int, size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [spectral_norm(nn.Conv2d(channels, width, 3, padding=1))]
        while size > 4:
            layers += [nn.LeakyReLU(0.1), spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1))]
            width, size = 2 * width, size // 2
        self.layers = nn.Sequential(*layers, nn.LeakyReLU(0.1), nn.Flatten())
        self.real = spectral_norm(nn.Linear(width * 16, 1))
        self.classes = spectral_norm(nn.Embedding(CLASSES, width * 16))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.layers(images)
        scores: Tensor = self.real(features)[:, 0] + (self.classes(labels) * features).sum(1)
        return scores


class GAN(ClassGenerator):
    """The critic learns to tell real images from generated ones, the generator to mislead it.

    Args:
        width: Channels at the full size.
        latent: Random numbers that an image is made from.
        channels: Of an image.
        size: Pixels of each side: 4 times a power of two.
        per_class: Images of each class that a validation generates.
    """

    def __init__(
        self,
        width: int = 128,
        latent: int = 128,
        channels: int = 3,
        size: int = 32,
        per_class: int = 100,
        generator_rate: float = 2e-4,
        critic_rate: float = 2e-4,
    ) -> None:
        super().__init__((latent,), per_class)
        self.automatic_optimization = False
        self.generator = Network(latent, width, channels, size)
        self.critic = Critic(width, channels, size)

    def generate(self, noise: Tensor, labels: Tensor) -> Tensor:
        images: Tensor = self.generator(noise, labels)
        return images

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        images, labels, noise, _ = batch
        generator, critic = self.optimizers()
        made = self.generator(noise, labels)

        real = self.critic(scaled(images).to(made.dtype), labels)
        fake = self.critic(made.detach(), labels)
        critic_loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()  # the hinge loss
        critic.zero_grad()
        self.manual_backward(critic_loss)
        critic.step()

        generator_loss = -self.critic(made, labels).mean()
        generator.zero_grad()
        self.manual_backward(generator_loss)
        generator.step()
        return {"loss": critic_loss, "generator": generator_loss}

    def configure_optimizers(self) -> Any:
        rates = self.hparams["generator_rate"], self.hparams["critic_rate"]
        parts = zip((self.generator, self.critic), rates, strict=True)
        return [torch.optim.Adam(part.parameters(), rate, betas=(0.0, 0.99)) for part, rate in parts]


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the weights with the best accuracy are kept."""
    trainer = config.make_trainer(
        name="gan",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        validate_every="5ep",
        callbacks=[EMA(config.average), Checkpoint(monitor="val/accuracy")],
    )
    train, held_out = images_by_class(config.data, config.data_dir)
    channels, size = train[0][0].shape[:2]
    torch.manual_seed(trainer.settings.seed)
    module = GAN(
        config.width,
        config.latent,
        channels,
        size,
        config.per_class,
        config.generator_rate,
        config.critic_rate,
    )
    noisy = NoisyImages(train, (config.latent,))
    options: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    return Experiment(
        trainer,
        module,
        train=DataLoader(noisy, shuffle=True, drop_last=True, **options),
        val=DataLoader(held_out, **options),
    )
