"""Contrastive learning with a momentum encoder that follows in on_train_batch_end; cosine by epoch."""

import copy

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    """Each row twice, distorted in two ways that are drawn once."""

    def __init__(self, size=80):
        generator = torch.Generator().manual_seed(23)
        rows = torch.randn(size, 10, generator=generator)
        noise = 0.2 * torch.randn(2, size, 10, generator=generator)
        self.views = rows + noise

    def __len__(self):
        return self.views.size(1)

    def __getitem__(self, index):
        return (self.views[0, index], self.views[1, index]), index


@torch.no_grad()
def update_momentum(model, model_ema, m):
    for parameter, average in zip(model.parameters(), model_ema.parameters(), strict=True):
        average.data = average.data * m + parameter.data * (1.0 - m)


class MoCo(L.LightningModule):
    def __init__(
        self, hidden_dim=16, lr=0.06, temperature=0.1, weight_decay=5e-4, max_epochs=500, momentum=0.99
    ):
        super().__init__()
        self.save_hyperparameters()
        assert self.hparams.temperature > 0.0, "The temperature must be a positive float!"
        self.backbone = nn.Sequential(nn.Linear(10, hidden_dim), nn.ReLU())
        self.projection_head = nn.Linear(hidden_dim, 8)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.head_momentum = copy.deepcopy(self.projection_head)
        for parameter in [*self.backbone_momentum.parameters(), *self.head_momentum.parameters()]:
            parameter.requires_grad = False

    def forward(self, x):
        return F.normalize(self.projection_head(self.backbone(x)), dim=-1)

    @torch.no_grad()
    def forward_momentum(self, x):
        return F.normalize(self.head_momentum(self.backbone_momentum(x)), dim=-1).detach()

    def info_nce_loss(self, batch, mode="train"):
        (first, second), _ = batch
        logits = self(first) @ self.forward_momentum(second).T / self.hparams.temperature
        labels = torch.arange(len(logits), device=self.device)
        nll = F.cross_entropy(logits, labels)
        ranks = (logits > logits.diagonal()[:, None]).sum(dim=-1)
        self.log(mode + "_loss", nll)
        self.log(mode + "_acc_top1", (ranks == 0).float().mean())
        self.log(mode + "_acc_mean_pos", 1 + ranks.float().mean())
        return nll

    def training_step(self, batch, batch_idx):
        return self.info_nce_loss(batch, mode="train")

    def validation_step(self, batch, batch_idx):
        self.info_nce_loss(batch, mode="val")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        update_momentum(self.backbone, self.backbone_momentum, m=self.hparams.momentum)
        update_momentum(self.projection_head, self.head_momentum, m=self.hparams.momentum)

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        scheduler = lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=self.hparams.max_epochs, eta_min=self.hparams.lr / 50
        )
        return [optimizer], [scheduler]


def main(max_epochs=3, **trainer_options):
    L.seed_everything(42)
    trainer = L.Trainer(
        default_root_dir="saved_models",
        max_epochs=max_epochs,
        callbacks=[
            ModelCheckpoint(save_weights_only=True, mode="max", monitor="val_acc_top1"),
            LearningRateMonitor("epoch"),
        ],
        log_every_n_steps=1,
        **trainer_options,
    )
    trainer.logger._default_hp_metric = None
    train_loader = DataLoader(TwoViews(), batch_size=16, drop_last=True, num_workers=0)
    val_loader = DataLoader(TwoViews(40), batch_size=16, drop_last=False)
    model = MoCo(max_epochs=max_epochs, lr=5e-3)
    trainer.fit(model, train_loader, val_loader)
    return trainer, model
