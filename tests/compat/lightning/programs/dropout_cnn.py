"""A classifier with shuffled batches, dropout, worker processes and label noise: as most programs are."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

DRAWS = "the loader shuffles and the net drops out"
CHECKPOINT_PATH = os.environ.get("PATH_CHECKPOINT", "saved_models/")


class Textures(Dataset):
    def __init__(self, size=48, seed=1, transform=None):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(size) % 4
        phase = torch.rand(size, 1, 1, generator=generator)
        ramp = torch.arange(10.0)
        waves = torch.sin((1 + self.labels)[:, None, None] * (ramp[None, :, None] + phase))
        self.images = waves.expand(size, 10, 10)[:, None].clone()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), self.labels[index]


class CIFARModule(L.LightningModule):
    def __init__(self, model_hparams, optimizer_name, optimizer_hparams):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, model_hparams["c_hidden"], 3, padding=1),
            nn.ReLU(),
            nn.Dropout2d(model_hparams["dropout"]),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * model_hparams["c_hidden"], model_hparams["num_classes"]),
        )
        self.loss_module = nn.CrossEntropyLoss()
        self.example_input_array = torch.zeros((1, 1, 10, 10), dtype=torch.float32)

    def forward(self, imgs):
        return self.model(imgs)

    def configure_optimizers(self):
        if self.hparams.optimizer_name == "Adam":
            optimizer = optim.AdamW(self.parameters(), **self.hparams.optimizer_hparams)
        elif self.hparams.optimizer_name == "SGD":
            optimizer = optim.SGD(self.parameters(), **self.hparams.optimizer_hparams)
        else:
            assert False, f'Unknown optimizer: "{self.hparams.optimizer_name}"'  # noqa: B011, PT015
        scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3], gamma=0.1)
        return [optimizer], [scheduler]

    def training_step(self, batch, batch_idx):
        imgs, labels = batch
        preds = self.model(imgs)
        loss = self.loss_module(preds, labels)
        acc = (preds.argmax(dim=-1) == labels).float().mean()
        self.log("train_acc", acc, on_step=False, on_epoch=True)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        imgs, labels = batch
        acc = (labels == self.model(imgs).argmax(dim=-1)).float().mean()
        self.log("val_acc", acc)

    def test_step(self, batch, batch_idx):
        imgs, labels = batch
        acc = (labels == self.model(imgs).argmax(dim=-1)).float().mean()
        self.log("test_acc", acc)


def flip(image):
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def main(max_epochs=3, **trainer_options):
    L.seed_everything(42, workers=True)
    train_loader = DataLoader(
        Textures(transform=flip), batch_size=12, shuffle=True, drop_last=True, num_workers=1
    )
    val_loader = DataLoader(Textures(24, seed=2), batch_size=12, shuffle=False)
    trainer = L.Trainer(
        default_root_dir=os.path.join(CHECKPOINT_PATH, "cnn"),
        max_epochs=max_epochs,
        callbacks=[
            ModelCheckpoint(save_weights_only=True, mode="max", monitor="val_acc"),
            EarlyStopping("val_acc", patience=10, mode="max"),
            LearningRateMonitor("epoch"),
        ],
        log_every_n_steps=1,
        **trainer_options,
    )
    model = CIFARModule(
        model_hparams={"c_hidden": 8, "dropout": 0.2, "num_classes": 4},
        optimizer_name="Adam",
        optimizer_hparams={"lr": 1e-2, "weight_decay": 1e-4},
    )
    trainer.fit(model, train_loader, val_loader)
    model = CIFARModule.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    trainer.test(model, dataloaders=val_loader, verbose=False)
    return trainer, model
