"""Momentum contrast: a queue of keys, an encoder that follows the other, kNN accuracy, then a linear probe.

python moco.py --epochs 200 --queue-size 4096 --dim 128
"""

import argparse
import copy
import math
import os

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES = 4


# --- data ---


class PatternDataset(Dataset):
    """Pictures of 1x10x10: one of four gratings, at a random phase, with noise."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % CLASSES
        angle = self.labels * math.pi / CLASSES
        phase = 2 * math.pi * torch.rand(n, generator=g)
        yy, xx = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
        along = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
        self.images = torch.sin(1.3 * along + phase[:, None, None])[:, None]
        self.images = self.images + 0.3 * torch.randn(self.images.shape, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class TwoCropsTransform:
    """Two views of a picture: shifted, scaled and noisy, drawn for the sample and the epoch."""

    def __init__(self, seed=0):
        self.seed, self.epoch = seed, 0

    def _view(self, image, g):
        dy, dx = torch.randint(-2, 3, (2,), generator=g).tolist()
        image = torch.roll(image, (dy, dx), dims=(-2, -1))
        contrast = 0.7 + 0.6 * torch.rand(1, generator=g)
        return contrast * image + 0.1 * torch.randn(image.shape, generator=g)

    def __call__(self, image, index):
        g = torch.Generator().manual_seed(self.seed + 7919 * self.epoch + index)
        return [self._view(image, g), self._view(image, g)]


class TwoCropsDataset(Dataset):
    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        image, label = self.dataset[i]
        return self.transform(image, i), label


class PatternDataModule(pl.LightningDataModule):
    name = "patterns"

    def __init__(self, batch_size=16, num_workers=0, train_size=96, val_size=24):
        super().__init__()
        self.save_hyperparameters(ignore=["num_workers"])
        self.num_workers = num_workers
        self.transform = TwoCropsTransform(seed=3)

    @property
    def num_classes(self):
        return CLASSES

    def setup(self, stage=None):
        self.bank = PatternDataset(self.hparams.train_size, seed=1)
        self.train = TwoCropsDataset(self.bank, self.transform)
        self.val = PatternDataset(self.hparams.val_size, seed=2)

    def train_dataloader(self):
        return DataLoader(self.train, self.hparams.batch_size, drop_last=True, num_workers=self.num_workers)

    def bank_dataloader(self):
        return DataLoader(self.bank, self.hparams.batch_size, num_workers=self.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val, self.hparams.batch_size, num_workers=self.num_workers)


# --- model ---


def conv_encoder(width, dim):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, dim),
    )


def projection_head(dim, out):
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))


@torch.no_grad()
def concat_all_gather(tensor):
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return tensor
    gathered = [torch.ones_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, tensor)
    return torch.cat(gathered)


class MoCo(pl.LightningModule):
    def __init__(
        self,
        width: int = 8,
        dim: int = 16,
        out_dim: int = 8,
        queue_size: int = 64,
        momentum: float = 0.9,
        temperature: float = 0.2,
        learning_rate: float = 0.1,
        weight_decay: float = 1e-4,
        warmup_epochs: int = 1,
        max_epochs: int = 4,
        knn_k: int = 5,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.encoder_q = conv_encoder(width, dim)
        self.head_q = projection_head(dim, out_dim)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        self.head_k = copy.deepcopy(self.head_q)
        for p in [*self.encoder_k.parameters(), *self.head_k.parameters()]:
            p.requires_grad = False

        self.register_buffer("queue", F.normalize(torch.randn(out_dim, queue_size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.register_buffer("bank_features", torch.empty(0), persistent=False)
        self.bank_labels = None
        self.knn_correct, self.knn_total = 0, 0

    def forward(self, x):
        return self.encoder_q(x)

    @torch.no_grad()
    def _momentum_update(self):
        m = self.current_momentum()
        pairs = [(self.encoder_q, self.encoder_k), (self.head_q, self.head_k)]
        for online, target in pairs:
            for q, k in zip(online.parameters(), target.parameters(), strict=False):
                k.data = k.data * m + q.data * (1.0 - m)

    def current_momentum(self):
        """From its first value to 1, as a cosine over all steps."""
        done = self.trainer.global_step / self.trainer.estimated_stepping_batches
        return 1 - (1 - self.hparams.momentum) * (math.cos(math.pi * done) + 1) / 2

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        keys = concat_all_gather(keys)
        size, ptr = keys.shape[0], int(self.queue_ptr)
        assert self.hparams.queue_size % size == 0
        self.queue[:, ptr : ptr + size] = keys.T
        self.queue_ptr[0] = (ptr + size) % self.hparams.queue_size

    def on_train_epoch_start(self):
        self.trainer.datamodule.transform.epoch = self.current_epoch

    def training_step(self, batch, batch_idx):
        (img_q, img_k), _ = batch
        q = F.normalize(self.head_q(self.encoder_q(img_q)), dim=1)
        with torch.no_grad():
            k = F.normalize(self.head_k(self.encoder_k(img_k)), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / self.hparams.temperature
        target = torch.zeros(len(logits), dtype=torch.long, device=self.device)
        loss = F.cross_entropy(logits, target)
        accuracy = (logits.argmax(1) == 0).float().mean()
        self.log_dict({"train/loss": loss, "train/contrast_acc": accuracy}, on_step=True, on_epoch=True)
        return {"loss": loss, "keys": k}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self._momentum_update()
        self._dequeue_and_enqueue(outputs["keys"])
        self.log("momentum", self.current_momentum(), prog_bar=True)

    @torch.no_grad()
    def on_validation_epoch_start(self):
        loader = self.trainer.datamodule.bank_dataloader()
        features, labels = [], []
        for images, target in loader:
            features.append(F.normalize(self(images.to(self.device)), dim=1))
            labels.append(target.to(self.device))
        self.bank_features = torch.cat(features).T.contiguous()
        self.bank_labels = torch.cat(labels)
        self.knn_correct, self.knn_total = 0, 0

    def _knn(self, features):
        similarity, index = (features @ self.bank_features).topk(self.hparams.knn_k, dim=-1)
        weights = (similarity / self.hparams.temperature).exp()
        votes = F.one_hot(self.bank_labels[index], CLASSES) * weights.unsqueeze(-1)
        return votes.sum(1).argmax(-1)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        predicted = self._knn(F.normalize(self(images), dim=1))
        self.knn_correct += (predicted == labels).sum().item()
        self.knn_total += len(labels)

    def on_validation_epoch_end(self):
        self.log("knn_acc", 100 * self.knn_correct / self.knn_total, prog_bar=True)
        variance = self.bank_features.std(1).mean()
        self.log("bank_std", variance)

    def _param_groups(self):
        decay, no_decay = [], []
        for name, p in self.named_parameters():
            if p.requires_grad:
                (no_decay if p.ndim == 1 or name.endswith("bias") else decay).append(p)
        return [
            {"params": decay, "weight_decay": self.hparams.weight_decay},
            {"params": no_decay, "weight_decay": 0.0},
        ]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self._param_groups(), lr=self.hparams.learning_rate, momentum=0.9, nesterov=True
        )
        warmup = self.hparams.warmup_epochs
        scheduler = SequentialLR(
            optimizer,
            [
                LinearLR(optimizer, start_factor=0.1, total_iters=warmup),
                CosineAnnealingLR(optimizer, T_max=self.hparams.max_epochs - warmup),
            ],
            milestones=[warmup],
        )
        return [optimizer], [scheduler]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["backbone_width"] = self.hparams.width

    def on_load_checkpoint(self, checkpoint):
        if checkpoint["backbone_width"] != self.hparams.width:
            raise ValueError("this checkpoint has another backbone")


# --- evaluation ---


class CosineWithMinimum(LRScheduler):
    def __init__(self, optimizer, steps, eta_min=1e-3, last_epoch=-1):
        self.steps, self.eta_min = steps, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        part = min(self.last_epoch / self.steps, 1.0)
        return [
            self.eta_min + (lr - self.eta_min) * (1 + math.cos(math.pi * part)) / 2 for lr in self.base_lrs
        ]


class LinearProbe(pl.LightningModule):
    """A linear layer on an encoder that stays as it is."""

    def __init__(self, backbone: nn.Module, dim: int, num_classes: int, lr: float = 0.5):
        super().__init__()
        self.save_hyperparameters(ignore=["backbone"])
        self.backbone = backbone
        self.classifier = nn.Linear(dim, num_classes)

    def on_train_epoch_start(self):
        self.backbone.eval()

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.classifier(features)

    def shared_step(self, batch, prefix):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log(f"{prefix}_loss", loss)
        self.log(f"{prefix}_acc1", (logits.argmax(1) == y).float().mean(), prog_bar=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.shared_step(batch, "probe_train")

    def validation_step(self, batch, batch_idx):
        self.shared_step(batch, "probe_val")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.classifier.parameters(), lr=self.hparams.lr)
        scheduler = CosineWithMinimum(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def pretrain(args, datamodule, **trainer_options):
    model = MoCo(dim=args.dim, queue_size=args.queue_size, max_epochs=args.epochs)
    checkpoint = ModelCheckpoint(
        dirpath=os.path.join(args.out, "pretrain"),
        filename="moco-{epoch:03d}",
        every_n_epochs=2,
        save_top_k=-1,
        save_last=True,
    )
    trainer = pl.Trainer(
        logger=TensorBoardLogger(args.out, name="moco", version=datamodule.name),
        callbacks=[checkpoint, LearningRateMonitor("epoch")],
        check_val_every_n_epoch=2,
        num_sanity_val_steps=0,
        log_every_n_steps=3,
        **{"max_epochs": args.epochs} | trainer_options,
    )
    trainer.fit(model, datamodule=datamodule)
    return model, checkpoint


def main(argv=(), **trainer_options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--probe-epochs", type=int, default=3)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--queue-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--out", default="runs")
    args = parser.parse_args(argv)

    pl.seed_everything(args.seed)
    datamodule = PatternDataModule()
    model, checkpoint = pretrain(args, datamodule, **trainer_options)
    assert os.path.basename(checkpoint.best_model_path).startswith("moco-epoch=")

    pretrained = MoCo.load_from_checkpoint(checkpoint.last_model_path, map_location="cpu", knn_k=3)
    assert pretrained.hparams.knn_k == 3
    assert int(pretrained.queue_ptr) == int(model.queue_ptr)
    assert torch.equal(pretrained.queue, model.queue)

    for p in pretrained.encoder_q.parameters():
        p.requires_grad = False
    pl.seed_everything(args.seed)
    probe = LinearProbe(pretrained.encoder_q, args.dim, datamodule.num_classes)
    bank, val = datamodule.bank, datamodule.val
    trainer = pl.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **trainer_options | {"max_epochs": args.probe_epochs},
    )
    trainer.fit(
        probe,
        DataLoader(TensorDataset(bank.images, bank.labels), batch_size=24),
        DataLoader(TensorDataset(val.images, val.labels), batch_size=24),
    )
    metrics = trainer.validate(probe, DataLoader(val, batch_size=24), verbose=False)
    print("linear probe:", metrics[0])
    return trainer, probe


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
