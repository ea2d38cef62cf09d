"""A Vision Transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DropPath(nn.Module):
    """Drops a residual branch of whole samples (stochastic depth, https://arxiv.org/abs/1603.09382).

    Args:
        rate: The probability with which a sample's branch is dropped in training.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) < keep
        return x * (mask.to(x.dtype) / keep)


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        joined: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return F.dropout(joined, self.dropout, self.training)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, dropout: float, drop_path: float) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x


class VisionTransformer(nn.Module):
    """Images (batch, 3, image, image) to logits (batch, classes).

    Args:
        image: Height and width in pixels, a multiple of ``patch``.
        drop_path: The rate of the last block; the first has 0, those between lie on a line.
    """

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        mlp_ratio: float = 4.0,
        classes: int = 10,
        dropout: float = 0.1,
        drop_path: float = 0.1,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.drop = nn.Dropout(dropout)
        rates = [drop_path * index / max(depth - 1, 1) for index in range(depth)]
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio, dropout, r) for r in rates))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.positions, std=0.02)
        nn.init.trunc_normal_(self.class_token, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        tokens = self.blocks(self.drop(tokens + self.positions))
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
