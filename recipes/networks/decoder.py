"""A decoder-only transformer over packed documents: no token sees another document than its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline import PacelineError


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
            raise PacelineError("width is no multiple of 2 * heads", got=f"width {width}, heads {heads}")
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Logits of the token that follows each.

        Args:
            tokens: (batch, length).
            documents: A number for the document of each token, (batch, length); none: each row is one.
        """
        mask = None if documents is None else causal_mask(documents)
        if documents is None:
            documents = torch.zeros_like(tokens)
        rotation = rotations(positions_in(documents), self.head_width)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotation, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


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

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))  # (batch, head, token, number)
        query, key = (rotated(F.rms_norm(part, part.shape[-1:]), *rotation) for part in (query, key))
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        attended = attended.transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        hidden = F.relu(self.up(self.mlp_norm(x))).square()
        return x + F.dropout(self.down(hidden), self.dropout, self.training)


def positions_in(documents: Tensor) -> Tensor:
    """The position of each token within its document, which is one run of the same number.

    Example:
        >>> positions_in(torch.tensor([[3, 3, 4, 4, 4]]))
        tensor([[0, 1, 0, 1, 2]])
    """
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return places - (places * begins).cummax(1).values


def rotations(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (batch, 1, length, width / 2), in float32."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions[:, None, :, None] * rates
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys, each pair of numbers turned by its angle."""
    first, second = x.chunk(2, -1)
    turned = torch.cat((first * cosines - second * sines, first * sines + second * cosines), -1)
    return turned.to(x.dtype)


def causal_mask(documents: Tensor) -> Tensor:
    """Which tokens see which, (batch, 1, length, length): those of their document, up to themselves."""
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same.tril()
