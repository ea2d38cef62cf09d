"""Diffusion: noise at all levels, and images out of noise by a network that knows the answer."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer
from paceline.recipes.data.generated import CLASSES, scaled
from paceline.recipes.diffusion import Config, Diffusion, build, signal_and_noise
from paceline.recipes.networks.unet import Block, UNet


class Knows(nn.Module):
    """The noise in a noisy image of its class, where the clean one is ``images[class]``."""

    def __init__(self, images):
        super().__init__()
        self.images = images
        self.asked = []

    def forward(self, noisy, time, labels):
        self.asked.append(labels)
        signal, level = (part.view(-1, 1, 1, 1) for part in signal_and_noise(time))
        return (noisy - signal * self.images[labels]) / level


def test_signal_and_noise_have_a_square_sum_of_one():
    signal, level = signal_and_noise(torch.linspace(0, 1, 11))
    torch.testing.assert_close(signal**2 + level**2, torch.ones(11))
    assert (signal[0], level[0]) == (1, 0)
    assert (signal.diff() < 0).all()


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_network_that_knows_the_noise_gives_the_image(guidance):
    module = Diffusion((8,), 1, 1, 4, sampling_steps=7, guidance=guidance)
    images = torch.rand(CLASSES, 1, 4, 4) * 2 - 1
    everything = torch.cat([images, images.mean(0, keepdim=True)])
    module.network = network = Knows(everything)
    labels = torch.tensor([7, 0, 3])
    made = module.generate(torch.randn(3, 1, 4, 4), labels)
    mean = everything[CLASSES]
    expected = (mean + guidance * (images[labels] - mean)).clamp(-1, 1)
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert len(network.asked) == 7 * (1 if guidance == 1 else 2)


def test_a_block_without_scale_and_shift_is_a_plain_residual_block():
    block = Block(8, 8, 4)
    nn.init.zeros_(block.known.weight)
    nn.init.zeros_(block.known.bias)
    nn.init.normal_(block.second.weight)
    x = torch.randn(2, 8, 4, 4)
    plain = x + block.second(nn.functional.silu(block.norm(block.first(x))))
    torch.testing.assert_close(block(x, torch.randn(2, 4)), plain)


@pytest.mark.parametrize("unlabelled", [0.0, 0.4, 1.0])
def test_a_part_of_the_samples_is_learned_without_its_class(unlabelled):
    seen = []

    class Asked(Diffusion):
        def training_step(self, batch):
            self.network.register_forward_pre_hook(lambda _, given: seen.append(given))
            return super().training_step(batch)

    images = torch.randint(256, (10, 1, 4, 4), dtype=torch.uint8)
    draws = torch.stack([torch.linspace(0.1, 0.9, 10), torch.arange(10) / 10], 1)
    noise, labels = torch.randn(10, 1, 4, 4), torch.arange(10)
    module = Asked((8,), 1, 1, 4, unlabelled=unlabelled)
    trainer = Trainer(accelerator="cpu", max_steps=1, progress=False, loggers=False, run_dir=None)
    trainer.fit(module, DataLoader(TensorDataset(images, labels, noise, draws), 10))
    noisy, time, asked = seen[0]
    assert (asked == CLASSES).float().mean() == pytest.approx(unlabelled)
    signal, level = (part.view(-1, 1, 1, 1) for part in signal_and_noise(time))
    torch.testing.assert_close(noisy, signal * scaled(images) + level * noise)


def test_the_loss_is_zero_for_a_network_that_knows_the_noise():
    images = torch.randint(256, (CLASSES, 1, 4, 4), dtype=torch.uint8)

    class Wise(Diffusion):
        def training_step(self, batch):
            self.network = Knows(scaled(images))
            return super().training_step(batch)

    noise, draws = torch.randn(CLASSES, 1, 4, 4), torch.linspace(0.1, 0.9, CLASSES)[:, None].expand(-1, 2)
    module = Wise((8,), 1, 1, 4, unlabelled=0.0)
    loss = module.training_step((images, torch.arange(CLASSES), noise, draws))
    assert loss < 1e-10
    loss = module.training_step((images, torch.arange(CLASSES).roll(1), noise, draws))
    assert loss > 1e-3


def test_guidance_needs_samples_without_their_class():
    with pytest.raises(PacelineError, match="guidance needs samples"):
        build(Config(data="digits", unlabelled=0, trainer={"run_dir": None}))


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_network_uses_time_and_class(blocks):
    torch.manual_seed(0)
    network = UNet((8, 16, 16), blocks, 3, 11)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    images = torch.randn(1, 3, 16, 16).expand(3, -1, -1, -1)
    found = network(images, torch.tensor([0.2, 0.9, 0.2]), torch.tensor([1, 1, 5]))
    assert found.shape == images.shape
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
