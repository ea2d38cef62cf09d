"""A decoder-only transformer over packed documents: no token sees another document than its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline import PacelineError
from paceline.recipes.networks.document_attention import (
    Documents,
    attend,
    documents_in,
    dtype_of_products,
    fastest,
    positions_in,
)


class Decoder(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary).

    Pre-norm blocks with RMSNorm, rotary positions that restart at 0 in each document (Su et al. 2021,
    https://arxiv.org/abs/2104.09864), normalised queries and keys (Dehghani et al. 2023,
    https://arxiv.org/abs/2302.05442) and squared ReLU (So et al. 2021, https://arxiv.org/abs/2109.08668).
    No layer has a bias. Each block begins as the identity.

    Args:
        vocabulary: Different tokens.
        width: Numbers in a token; a multiple of ``2 * heads``.
        depth: Blocks.
        heads: Attention heads in a block.
        dropout: Rate of dropout after attention and after the MLP.

    Raises:
        PacelineError: for a width that is no multiple of ``2 * heads``.

    Example:
        >>> Decoder(vocabulary=256, width=32, depth=2, heads=2)(torch.zeros(1, 8, dtype=torch.long)).shape
        torch.Size([1, 8, 256])
    """

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % (2 * heads):
            raise PacelineError(
                "width is no multiple of 2 * heads",
                code="recipe-settings",
                got=f"width {width}, heads {heads}",
            )
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Logits of the token that follows each. Arguments as of ``hidden``."""
        logits: Tensor = self.head(self.hidden(tokens, starts))
        return logits

    def hidden(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """What the head takes, (batch, length, width).

        Args:
            tokens: (batch, length).
            starts: Where documents begin in each row, as ``starts_of`` gives them; none: each row is one.
        """
        x = self.embedding(tokens)
        length, dtype = tokens.shape[1], dtype_of_products(x.device, x.dtype)
        documents = documents_in(starts, length, fastest(x.device, dtype, self.head_width))
        if starts is None:
            positions = torch.arange(length, device=x.device)[None]
        else:
            positions = positions_in(starts, length)
        rotation = rotations(positions, self.head_width)
        for block in self.blocks:
            x = block(x, rotation, documents)
        found: Tensor = self.norm(x)
        return found


class Block(nn.Module):
    """Attention, then an MLP four times as wide, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], documents: Documents) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.unbind(2)  # (batch, token, head, number)
        query, key = (rotated(F.rms_norm(part, part.shape[-1:]), *rotation) for part in (query, key))
        attended = attend(query, key, value, documents).flatten(2)
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        hidden = F.relu(self.up(self.mlp_norm(x))).square()
        return x + F.dropout(self.down(hidden), self.dropout, self.training)


def rotations(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (batch, length, 1, width / 2), in float32."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions[:, :, None, None] * rates
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys, each pair of numbers turned by its angle."""
    first, second = x.chunk(2, -1)
    turned = torch.cat((first * cosines - second * sines, first * sines + second * cosines), -1)
    return turned.to(x.dtype)
