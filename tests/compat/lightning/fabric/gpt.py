"""Pretraining of a small GPT, in the form of litgpt's: a state, warm-up, iterations counted."""

import math
from dataclasses import dataclass

import lightning as L
import torch
from lightning.fabric.loggers import CSVLogger
from lightning.fabric.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Config:
    block_size: int = 8
    vocabulary: int = 16
    layers: int = 2
    heads: int = 2
    width: int = 16


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.heads = config.heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attention(self.norm_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.block_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)


def chunked_cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def get_lr(iteration, warmup=2, most=8, lr=0.01):
    if iteration < warmup:
        return lr * (iteration + 1) / warmup
    return 0.5 * lr * (1 + math.cos(math.pi * (iteration - warmup) / (most - warmup)))


def fit(fabric, state, train_dataloader, val_dataloader, max_iters, accumulation):
    model, optimizer = state["model"], state["optimizer"]
    losses, iterator = [], iter(train_dataloader)
    while state["iter_num"] < max_iters:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(state["step_count"])
        state["iter_num"] += 1
        batch = next(iterator)
        input_ids, targets = batch[:, :-1].contiguous().long(), batch[:, 1:].contiguous().long()
        is_accumulating = state["iter_num"] % accumulation != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = chunked_cross_entropy(model(input_ids), targets)
            fabric.backward(loss / accumulation)
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step_count"] += 1
        losses.append(fabric.all_reduce(loss.detach()).item())
        fabric.log_dict({"loss": loss.item(), "iter": state["iter_num"]}, step=state["iter_num"] - 1)
    fabric.barrier()
    return losses, validate(fabric, model, val_dataloader)


@torch.no_grad()
def validate(fabric, model, val_dataloader):
    model.eval()
    losses = torch.zeros(len(val_dataloader), device=fabric.device)
    for k, batch in enumerate(val_dataloader):
        losses[k] = chunked_cross_entropy(model(batch[:, :-1]), batch[:, 1:])
    model.train()
    return losses.mean().item()


def main(strategy="auto", devices=1, precision="bf16-mixed"):
    if strategy == "fsdp":
        strategy = FSDPStrategy(auto_wrap_policy={Block}, state_dict_type="full")
    logger = CSVLogger("out", "gpt", flush_logs_every_n_steps=1)
    fabric = L.Fabric(
        accelerator="cpu", devices=devices, strategy=strategy, precision=precision, loggers=[logger]
    )
    fabric.launch()
    fabric.seed_everything(42)
    with fabric.init_module(empty_init=False):
        model = GPT(Config())
    model.apply(model._init_weights)
    model = fabric.setup(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer = fabric.setup_optimizers(optimizer)
    tokens = torch.randint(0, 16, (32, 9), generator=torch.Generator().manual_seed(0))
    loaders = DataLoader(tokens, batch_size=4 // devices), DataLoader(tokens[:8], batch_size=4 // devices)
    train_dataloader, val_dataloader = fabric.setup_dataloaders(*loaders)
    state = {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0}
    found = fit(fabric, state, train_dataloader, val_dataloader, max_iters=8, accumulation=2)
    fabric.save("gpt.ckpt", state)
    saved = torch.load("gpt.ckpt", weights_only=True)
    weights = {name: value.sum().item() for name, value in saved["model"].items()}
    return found, saved["iter_num"], weights, model.config.width
