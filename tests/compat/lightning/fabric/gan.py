"""A GAN: two modules and two optimizers; the discriminator goes backward twice before it steps."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATENT = 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(LATENT, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, noise):
        return torch.tanh(self.layers(noise))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, rows):
        return self.layers(rows).squeeze(1)


def main(**options):
    fabric = L.Fabric(accelerator="cpu", **{"devices": 1} | options)
    fabric.launch()
    fabric.seed_everything(7)
    generator, discriminator = Generator(), Discriminator()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    generator, g_optimizer = fabric.setup(generator, g_optimizer)
    discriminator, d_optimizer = fabric.setup(discriminator, d_optimizer)
    draw = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.rand(24, 6, generator=draw), torch.randn(24, LATENT, generator=draw))
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=8 // fabric.world_size))
    criterion = nn.BCEWithLogitsLoss()
    losses = []
    for _ in range(3):
        for real, noise in loader:
            ones = torch.ones(len(real), device=fabric.device)
            d_optimizer.zero_grad()
            d_real = criterion(discriminator(real), ones)
            fabric.backward(d_real)
            fake = generator(noise)
            d_fake = criterion(discriminator(fake.detach()), torch.zeros_like(ones))
            fabric.backward(d_fake)
            d_optimizer.step()

            g_optimizer.zero_grad()
            g_loss = criterion(discriminator(fake), ones)
            fabric.backward(g_loss)
            g_optimizer.step()
        losses.append(fabric.all_reduce([d_real.detach(), d_fake.detach(), g_loss.detach()]))
    weights = {**generator.state_dict(prefix="g."), **discriminator.state_dict(prefix="d.")}
    return [[float(x) for x in row] for row in losses], {n: v.tolist() for n, v in weights.items()}
