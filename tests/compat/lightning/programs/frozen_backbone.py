"""Transfer learning: BaseFinetuning freezes a backbone with batch norm and thaws it at an epoch."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn, optim
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset


def cats_and_dogs(size=32, seed=2):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (size,), generator=generator)
    images = torch.randn(size, 3, 8, 8, generator=generator) + labels[:, None, None, None]
    return DataLoader(TensorDataset(images, labels), 8)


class MilestonesFinetuning(BaseFinetuning):
    def __init__(self, milestones: tuple = (1, 2), train_bn: bool = False):
        super().__init__()
        self.milestones = milestones
        self.train_bn = train_bn

    def freeze_before_training(self, pl_module: pl.LightningModule):
        self.freeze(modules=pl_module.feature_extractor, train_bn=self.train_bn)

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: optim.Optimizer):
        if epoch == self.milestones[0]:
            # unfreeze the last layer
            self.unfreeze_and_add_param_group(
                modules=pl_module.feature_extractor[-3:], optimizer=optimizer, train_bn=self.train_bn
            )
        elif epoch == self.milestones[1]:
            # unfreeze the remaining layers
            self.unfreeze_and_add_param_group(
                modules=pl_module.feature_extractor[:-3], optimizer=optimizer, train_bn=self.train_bn
            )


class TransferLearningModel(pl.LightningModule):
    def __init__(self, lr: float = 1e-2, lr_scheduler_gamma: float = 1e-1, milestones: tuple = (1, 2)):
        super().__init__()
        self.lr = lr
        self.lr_scheduler_gamma = lr_scheduler_gamma
        self.milestones = milestones
        self.__build_model()
        self.save_hyperparameters()

    def __build_model(self):
        self.feature_extractor = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.loss_func = nn.functional.binary_cross_entropy_with_logits

    def forward(self, x):
        return self.fc(self.feature_extractor(x).squeeze(-1).squeeze(-1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_logits = self.forward(x)
        train_loss = self.loss_func(y_logits, y.view((-1, 1)).float())
        self.log("train_acc", ((y_logits > 0).view(-1) == y).float().mean(), prog_bar=True)
        self.log("groups", float(len(self.optimizers().param_groups)))
        return train_loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_logits = self.forward(x)
        self.log("val_loss", self.loss_func(y_logits, y.view((-1, 1)).float()), prog_bar=True)

    def configure_optimizers(self):
        trainable_parameters = [p for p in self.parameters() if p.requires_grad]
        optimizer = optim.Adam(trainable_parameters, lr=self.lr)
        scheduler = MultiStepLR(optimizer, milestones=self.milestones, gamma=self.lr_scheduler_gamma)
        return [optimizer], [scheduler]


def main(max_epochs=3, **trainer_options):
    pl.seed_everything(9)
    model = TransferLearningModel()
    trainer = pl.Trainer(
        **{
            "max_epochs": max_epochs,
            "callbacks": [MilestonesFinetuning()],
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "enable_model_summary": False,
            **trainer_options,
        }
    )
    trainer.fit(model, cats_and_dogs(), cats_and_dogs(16, seed=3))
    return trainer, model
