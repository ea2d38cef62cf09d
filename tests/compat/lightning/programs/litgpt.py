"""Pretraining in the way of LitGPT: the model is built in configure_model, tokens and norms are counted."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import grad_norm, rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class PackedTokens(IterableDataset):
    """An endless stream of packed rows, the same each time it is begun."""

    def __init__(self, vocab_size, block_size):
        self.vocab_size, self.block_size = vocab_size, block_size

    def __iter__(self):
        generator = torch.Generator().manual_seed(77)
        while True:
            start = torch.randint(0, self.vocab_size, (1,), generator=generator)
            yield (start + torch.arange(self.block_size + 1)) % self.vocab_size


class StreamingData(L.LightningDataModule):
    def __init__(self, vocab_size=20, block_size=8):
        super().__init__()
        self.vocab_size, self.block_size = vocab_size, block_size
        self.batch_size = 1

    def connect(self, batch_size: int = 1):
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(PackedTokens(self.vocab_size, self.block_size), batch_size=self.batch_size)


class LLM(L.LightningModule):
    def __init__(self, vocab_size=20, width=16, max_norm=1.0):
        super().__init__()
        self.vocab_size, self.width, self.max_norm = vocab_size, width, max_norm
        self.model = None
        self.tokens = 0

    def configure_model(self):
        if self.model is not None:
            return
        self.model = nn.Sequential(
            nn.Embedding(self.vocab_size, self.width),
            nn.Linear(self.width, 2 * self.width),
            nn.SiLU(),
            nn.Linear(2 * self.width, self.vocab_size),
        )

    def setup(self, stage: str):
        self.print(f"Parameters before the model is built: {sum(p.numel() for p in self.parameters()):,}")

    def on_fit_start(self):
        self.print(f"Total parameters: {sum(p.numel() for p in self.parameters()):,}")

    def training_step(self, batch: torch.Tensor, batch_idx: int):
        inputs, targets = batch[:, :-1], batch[:, 1:]
        self.tokens += targets.numel()
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.reshape(-1, self.vocab_size), targets.reshape(-1))
        self.log("train_loss", loss, prog_bar=True)
        self.log("tokens", float(self.tokens), reduce_fx="sum", sync_dist=True)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer):
        norms = grad_norm(self.model, norm_type=2)
        self.log("grad_norm", norms["grad_2.0_norm_total"])

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        weight = torch.stack([p.detach().norm() for p in self.model.parameters()]).norm()
        self.log("weight_norm", weight)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]):
        checkpoint["tokens"] = self.tokens

    def on_load_checkpoint(self, checkpoint: dict[str, Any]):
        self.tokens = checkpoint["tokens"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3, weight_decay=0.0, betas=(0.9, 0.95))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@rank_zero_only
def save_note(folder: Path, text: str):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "note.txt").write_text(text)


def main(max_steps=10, **trainer_options):
    L.seed_everything(1337)
    data, llm = StreamingData(), LLM()
    data.connect(batch_size=4)
    trainer = L.Trainer(
        accumulate_grad_batches=2,
        max_steps=max_steps,
        max_epochs=-1,
        gradient_clip_val=llm.max_norm,
        log_every_n_steps=2,
        **{name: value for name, value in trainer_options.items() if name != "max_epochs"},
    )
    trainer.fit(llm, data)
    save_note(Path("out"), f"{llm.tokens} tokens")
    return trainer, llm
