"""Two tasks on one trunk: a head each, a validation loader each, values by dataloader_idx."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TASKS = ("colour", "depth")


def make_loader(size, seed, task=None):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    colour, depth = (x[:, :3].sum(1) > 0).long(), x[:, 3:].mean(1, keepdim=True)
    columns = {"colour": [x, colour], "depth": [x, depth], None: [x, colour, depth]}[task]
    return DataLoader(TensorDataset(*columns), batch_size=8)


class MultiTask(pl.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, width), nn.Tanh())
        self.heads = nn.ModuleDict({"colour": nn.Linear(width, 2), "depth": nn.Linear(width, 1)})
        self.log_sigmas = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> dict:
        features = self.trunk(x)
        return {name: head(features) for name, head in self.heads.items()}

    def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
        x, colour, depth = batch
        out = self(x)
        losses = torch.stack([F.cross_entropy(out["colour"], colour), F.mse_loss(out["depth"], depth)])
        total = (losses * torch.exp(-self.log_sigmas) + self.log_sigmas).sum()
        self.log_dict(
            {f"train/{name}": value for name, value in zip(TASKS, losses, strict=True)}, on_epoch=True
        )
        self.log("train/total", total)
        return {"loss": total, "losses": losses.detach()}

    def validation_step(self, batch, batch_idx, dataloader_idx=0) -> STEP_OUTPUT:
        x, wanted = batch
        if dataloader_idx == 0:
            loss = F.cross_entropy(self(x)["colour"], wanted)
            self.log("val/acc", (self(x)["colour"].argmax(1) == wanted).float().mean())
        else:
            loss = F.mse_loss(self(x)["depth"], wanted)
        self.log("val/loss", loss)
        self.log(f"val/{TASKS[dataloader_idx]}_loss", loss, add_dataloader_idx=False)
        return loss

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        x, wanted = batch
        name = TASKS[dataloader_idx]
        out = self(x)[name]
        self.log("test/loss", F.cross_entropy(out, wanted) if name == "colour" else F.mse_loss(out, wanted))

    def configure_optimizers(self):
        trunk = {"params": self.trunk.parameters(), "lr": 1e-3}
        return torch.optim.AdamW(
            [trunk, {"params": self.heads.parameters()}, {"params": [self.log_sigmas]}], lr=1e-2
        )


def main(max_epochs=2, **trainer_options):
    pl.seed_everything(3)
    model = MultiTask()
    checkpoint = ModelCheckpoint(monitor="val/depth_loss", filename="{epoch}-{step}", save_top_k=2)
    trainer = pl.Trainer(
        max_epochs=max_epochs, callbacks=[checkpoint], log_every_n_steps=2, **trainer_options
    )
    val = [make_loader(20, seed=1, task="colour"), make_loader(12, seed=2, task="depth")]
    trainer.fit(model, make_loader(48, seed=0), val)
    results = trainer.test(
        model, [make_loader(8, seed=3, task="colour"), make_loader(8, seed=4, task="depth")]
    )
    assert [set(result) for result in results] == [{f"test/loss/dataloader_idx_{n}"} for n in (0, 1)]
    return trainer, model
