"""The GAN: its step is that of a loop with two optimizers."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer
from paceline.recipes.data.generated import scaled
from paceline.recipes.gan import GAN, Critic, Network


def loop(module, batches):
    """Both updates of each batch, hand-written."""
    generator, critic = module.generator, module.critic
    optimizers = [
        torch.optim.Adam(part.parameters(), 0.01, betas=(0.0, 0.99)) for part in (generator, critic)
    ]
    for images, labels, noise, _ in batches:
        made = generator(noise, labels)
        real, false = critic(scaled(images), labels), critic(made.detach(), labels)
        optimizers[1].zero_grad()
        (F.relu(1 - real).mean() + F.relu(1 + false).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(made, labels).mean()).backward()
        optimizers[0].step()


def test_a_step_is_that_of_a_loop():
    torch.manual_seed(0)
    images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8)
    data = TensorDataset(images, torch.arange(12) % 10, torch.randn(12, 3), torch.rand(12, 0))
    module = GAN(8, 3, 1, 8, 2, generator_rate=0.01, critic_rate=0.01)
    written = copy.deepcopy(module)
    trainer = Trainer(accelerator="cpu", max_epochs=2, progress=False, loggers=False, run_dir=None)
    trainer.fit(module, DataLoader(data, 4))
    loop(written, [*DataLoader(data, 4)] * 2)
    for (name, ours), theirs in zip(module.named_parameters(), written.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_images_have_the_size_of_the_data(channels, size):
    made = Network(5, 8, channels, size)(torch.randn(2, 5), torch.tensor([3, 9]))
    assert made.shape == (2, channels, size, size)
    assert made.abs().max() <= 1
    assert Critic(8, channels, size)(made, torch.tensor([3, 9])).shape == (2,)
