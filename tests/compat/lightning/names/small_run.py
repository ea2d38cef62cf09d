"""The module and the data of try_names.py, of either library, and subclasses that count calls."""

from __future__ import annotations

import inspect

import torch

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def classes(pl):
    """The module and the data module of every run."""

    class Net(pl.LightningModule):
        def __init__(self, width=4, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, batch_idx):
            loss = self(batch).pow(2).mean()
            self.log("train_loss", loss, prog_bar=True)
            _ = self.current_epoch, self.global_step, self.example_input_array, self.optimizers()
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self(batch).pow(2).mean())

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self(batch).pow(2).mean())

        def predict_step(self, batch, batch_idx):
            return self(batch)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    class Data(pl.LightningDataModule):
        def loader(self):
            torch.manual_seed(1)
            return torch.utils.data.DataLoader(torch.randn(4, 4), batch_size=2)

        train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader

    return Net, Data


def counting(base, names, calls, loader):
    """A subclass that overrides the names, and counts the calls of each."""

    def override(name):
        def called(this, *args, **options):
            calls[name] += 1
            if name in LOADERS:
                return loader()
            if name == "state_dict":
                return {"kept": 1}  # without a state nothing is loaded
            found = getattr(super(made, this), name)
            return found if is_value else found(*args, **options)

        static = inspect.getattr_static(base, name, None)
        is_value = static is None or isinstance(static, property)
        if not inspect.isfunction(static):
            return property(called) if is_value else classmethod(called)
        called.__signature__ = inspect.signature(static)
        return called

    made = type("Made", (base,), {name: override(name) for name in names})
    return made
