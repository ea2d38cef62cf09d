"""Segmentation by a U-Net: OneCycleLR over the estimated steps, deterministic, an optimizer of groups."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Circles(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
        centre = 4 + 8 * torch.rand(n, 2, 1, 1, generator=generator)
        self.masks = ((grid - centre).square().sum(1) < 12).long()
        noise = 0.3 * torch.randn(n, 1, 16, 16, generator=generator)
        self.images = self.masks[:, None].float() + noise

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "mask": self.masks[i]}


def double_conv(in_channels, out_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, classes=2, width=4):
        super().__init__()
        self.down1, self.down2 = double_conv(1, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.conv2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.conv1 = double_conv(2 * width, width)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.conv2(torch.cat([two, self.up2(x)], 1))
        x = self.conv1(torch.cat([one, self.up1(x)], 1))
        return self.last(x)


class SegModel(pl.LightningModule):
    def __init__(self, max_lr: float = 0.01, batch_size: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.net = UNet()
        self.example_input_array = torch.zeros(1, 1, 16, 16)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_nb):
        loss = F.cross_entropy(self(batch["image"]), batch["mask"])
        self.log("train_loss", loss, on_epoch=True, batch_size=len(batch["image"]))
        return {"loss": loss}

    def validation_step(self, batch, batch_nb):
        out = self(batch["image"])
        loss_val = F.cross_entropy(out, batch["mask"])
        predicted = out.argmax(1)
        intersection = (predicted * batch["mask"]).sum()
        union = (predicted + batch["mask"]).clamp(max=1).sum()
        self.log("val_loss", loss_val, prog_bar=True)
        self.log("val_iou", intersection / union.clamp(min=1))
        return {"val_loss": loss_val}

    def train_dataloader(self):
        return DataLoader(Circles(24, seed=0), batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(Circles(10, seed=1), batch_size=self.hparams.batch_size)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.net.parameters(), lr=self.hparams.max_lr, momentum=0.9)
        sch = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=self.hparams.max_lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": opt,
            "lr_scheduler": {"scheduler": sch, "interval": "step", "name": "one_cycle"},
        }


def main(max_epochs=2, **trainer_options):
    pl.seed_everything(0, workers=True)
    model = SegModel()
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        deterministic=True,
        callbacks=ModelCheckpoint(monitor="val_iou", mode="max", save_last=True),
        log_every_n_steps=3,
        **trainer_options,
    )
    trainer.fit(model)
    return trainer, model
