"""A tiny GPT: accumulation, clipping, the learning rate set by hand, validation every few batches."""

import math
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.utilities import rank_zero_info
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class GPTConfig:
    vocab_size: int = 24
    block_size: int = 12
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16


class CharDataset(Dataset):
    def __init__(self, config, length=200):
        generator = torch.Generator().manual_seed(1)
        steps = torch.randint(1, 4, (length,), generator=generator)
        self.data = steps.cumsum(0) % config.vocab_size
        self.block_size = config.block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size * 2

    def __getitem__(self, index):
        start = index * self.block_size // 2
        chunk = self.data[start : start + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )

    def forward(self, x):
        b, t, c = x.shape
        heads = self.qkv(self.ln_1(x)).view(b, t, 3, self.n_head, c // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(L.LightningModule):
    def __init__(self, config, learning_rate=3e-3, warmup=2, max_iters=20):
        super().__init__()
        self.config, self.learning_rate = config, learning_rate
        self.warmup, self.max_iters = warmup, max_iters
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        rank_zero_info(f"number of parameters: {sum(p.numel() for p in self.parameters())}")

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=self.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def _loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x).flatten(0, 1), y.flatten())

    def get_lr(self, it):
        if it < self.warmup:
            return self.learning_rate * (it + 1) / self.warmup
        ratio = min(1.0, (it - self.warmup) / (self.max_iters - self.warmup))
        return 0.1 * self.learning_rate + 0.45 * self.learning_rate * (1 + math.cos(math.pi * ratio))

    def on_train_batch_start(self, batch, batch_idx):
        lr = self.get_lr(self.trainer.global_step)
        for param_group in self.trainer.optimizers[0].param_groups:
            param_group["lr"] = lr
        self.log("lr", lr)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch), on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(
            self.parameters(), lr=self.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
        )


def main(max_epochs=2, **trainer_options):
    L.seed_everything(1337)
    config = GPTConfig()
    model = GPT(config)
    trainer = L.Trainer(
        max_epochs=max_epochs,
        accumulate_grad_batches=4,
        gradient_clip_val=1.0,
        val_check_interval=8,
        limit_val_batches=2,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        enable_checkpointing=False,
        **trainer_options,
    )
    train_loader = DataLoader(CharDataset(config), batch_size=2, shuffle=False)
    trainer.fit(model, train_loader, DataLoader(CharDataset(config, 90), batch_size=4))
    return trainer, model
