"""What floating-point results depend on: the version of torch, and the kernels that the processor runs."""

from __future__ import annotations

import torch
from torch import nn

KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
"""Environment variables under which processors with AVX2 run the same kernels, whatever else they have."""


class _Net(nn.Module):
    """The kinds of layers that the programs in tests/compat/lightning train."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.GELU(), nn.Flatten(2))
        self.lstm = nn.LSTM(36, 16, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.conv(images))
        found: torch.Tensor = self.head(self.encoder(hidden).mean(1))
        return found


def results() -> list[str]:
    """Losses of a short training run, exact: they differ where kernels compute in another order."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, images = _Net(), torch.randn(12, 1, 8, 8)
        optimizer, found = torch.optim.AdamW(net.parameters(), lr=0.01), []
        for _ in range(4):
            loss = nn.functional.cross_entropy(net(images), torch.arange(12) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item().hex())
        weights = torch.cat([p.detach().double().reshape(-1) for p in net.parameters()])
    return [*found, weights.sum().item().hex(), weights.square().sum().item().hex()]


def made_with() -> dict[str, object]:
    """With what this process computes; numbers are comparable bit for bit where it is equal."""
    return {"torch": torch.__version__.partition("+")[0], "arithmetic": results()}
