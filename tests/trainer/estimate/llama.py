"""A model of Llama 3's shape, with selective activation checkpointing as torchtitan had it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from paceline import TrainModule

_KEPT = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def every_other_product() -> Any:
    """Keep attention and every second matrix product; compute the rest again."""
    seen = {"forward": 0, "again": 0}

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operation is torch.ops.aten.mm.default:
            part = "again" if context.is_recompute else "forward"
            seen[part] += 1
            keep = seen[part] % 2 == 1
        else:
            keep = operation in _KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.heads, self.kv_heads, size = heads, kv_heads, width // heads
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, kv_heads * size, bias=False)
        self.value = nn.Linear(width, kv_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)])

    def compute(self, x, turns):
        rows, length, width = x.shape
        normed = self.norms[0](x)
        query = rotated(self.query(normed).view(rows, length, self.heads, -1), turns)
        key = rotated(self.key(normed).view(rows, length, self.kv_heads, -1), turns)
        value = self.value(normed).view(rows, length, self.kv_heads, -1)
        repeat = self.heads // self.kv_heads
        key, value = (t.repeat_interleave(repeat, dim=2) for t in (key, value))
        found = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (query, key, value)), is_causal=True
        )
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def forward(self, x, turns):
        return checkpoint(self.compute, x, turns, use_reentrant=False, context_fn=every_other_product)


class Llama(TrainModule):
    """8 B parameters by default."""

    def __init__(self, width=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("turns", torch.zeros(8192, width // heads // 2, dtype=torch.complex64))

    def training_step(self, batch):
        tokens, targets = batch
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.turns[: tokens.shape[1]])
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)
