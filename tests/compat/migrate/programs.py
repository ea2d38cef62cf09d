"""Programs for Lightning, each with the same computation as a loop in plain torch.

``main`` of a program trains and returns the module. ``data`` is the same for all of them.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

HEAD = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))
"""
QUIET = "accelerator='cpu', logger=False, enable_checkpointing=False, enable_progress_bar=False"


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def seeded(*layers):
    torch.manual_seed(7)
    return nn.Sequential(*[layer() for layer in layers])


ACCUMULATED = (
    HEAD.replace("import torch\n", "import lightning as L\nimport torch\n", 1)
    + f"""

class Regression(L.LightningModule):
    def __init__(self, lr: float = 0.1, width: int = 8):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, self.hparams.width), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(x))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return {{"optimizer": optimizer, "lr_scheduler": {{"scheduler": schedule, "interval": "step"}}}}


def main():
    model = Regression(lr=0.05)
    trainer = L.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        log_every_n_steps=1,
        precision="32-true",
        {QUIET},
        enable_model_summary=False,
    )
    trainer.fit(model, train_dataloaders=DataLoader(data(), batch_size=4))
    return model
"""
)


def accumulated():
    net = seeded(lambda: nn.Linear(4, 8), nn.Tanh, lambda: nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for _ in range(2):
        for index, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
            (mse_loss(net(x), y) / 2).backward()
            if index % 2 == 1:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return net


HOOKS = (
    HEAD
    + f"""
import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class Nudge(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            with torch.no_grad():
                pl_module.net[0].bias.add_(0.25)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            parameter.grad.mul_(0.5)


class Hooked(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, 1))
        self.seen = []

    def on_train_start(self):
        self.seen.append("start")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(self.global_step)

    def on_validation_epoch_end(self):
        self.seen.append(("val", self.current_epoch))

    def on_before_optimizer_step(self, optimizer):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.global_step)

    def training_step(self, batch, batch_idx):
        return mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    model = Hooked()
    trainer = pl.Trainer(max_epochs=2, callbacks=[Nudge()], num_sanity_val_steps=0, {QUIET})
    trainer.fit(model, DataLoader(data(), batch_size=8), DataLoader(data(), batch_size=16))
    assert abs(float(trainer.callback_metrics["val_loss"]) - whole_loss(model)) < 1e-6
    assert model.seen[0] == "start" and ("val", 1) in model.seen
    return model


def whole_loss(model):
    x, y = data().tensors
    with torch.no_grad():
        return float(mse_loss(model.net(x), y))
"""
)


def hooks():
    net = seeded(lambda: nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = 0
    for epoch in range(2):
        for x, y in DataLoader(data(), batch_size=8):
            mse_loss(net(x), y).backward()
            for parameter in net.parameters():
                parameter.grad.mul_(0.5)
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        if epoch == 0:
            with torch.no_grad():
                net[0].bias.add_(0.25)
    return net


MANUAL = (
    HEAD
    + f"""
from lightning.pytorch import LightningModule, Trainer


class Two(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters("lr")
        self.automatic_optimization = False
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer in self.optimizers(use_pl_optimizer=True):
            self.toggle_optimizer(optimizer)
            loss = mse_loss(self.net(x), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.log_dict({{"loss_of_two": loss}}, on_epoch=True)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=self.hparams.lr) for part in self.net]


def main():
    model = Two(0.01)
    trainer = Trainer(max_epochs=2, max_steps=-1, {QUIET})
    trainer.fit(model=model, train_dataloaders=DataLoader(data(), batch_size=8))
    return model
"""
)


def manual():
    net = seeded(lambda: nn.Linear(4, 3), lambda: nn.Linear(3, 1))
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in net]
    for _ in range(2):
        for x, y in DataLoader(data(), batch_size=8):
            for optimizer in optimizers:
                optimizer.zero_grad()
                mse_loss(net(x), y).backward()
                optimizer.step()
    return net


WITH_DATA_MODULE = (
    HEAD
    + """
import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRScheduler, STEP_OUTPUT


class Data(pl.LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        self.data = data()

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=16)

    test_dataloader = val_dataloader


class Plateau(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, 1))

    def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
        return {"loss": mse_loss(self.net(batch[0]), batch[1])}

    def validation_step(self, batch, batch_idx) -> STEP_OUTPUT:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("test_loss", mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1),
                "monitor": "val_loss",
                "reduce_on_plateau": True,
            },
        }


def main():
    model = Plateau()
    trainer = pl.Trainer(
        max_epochs=4,
        gradient_clip_val=0.3,
        gradient_clip_algorithm="value",
        callbacks=[
            EarlyStopping("val_loss", 0.0, 3, verbose=True),
            ModelCheckpoint(monitor="val_loss", mode="min", save_top_k=1, save_last=True),
        ],
        default_root_dir="out",
        accelerator="cpu",
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(model, datamodule=Data())
    tested = trainer.test(model, datamodule=Data(), verbose=False)[0]["test_loss"]
    assert tested > 0
    return model
"""
)


def with_data_module():
    net = seeded(lambda: nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
    for _ in range(4):
        for x, y in DataLoader(data(), batch_size=4):
            mse_loss(net(x), y).backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            losses = [float(mse_loss(net(x), y)) for x, y in DataLoader(data(), batch_size=16)]
        schedule.step(sum(losses) / len(losses))
    return net


PROGRAMS = {
    "accumulated": (ACCUMULATED, accumulated),
    "hooks": (HOOKS, hooks),
    "manual": (MANUAL, manual),
    "with_data_module": (WITH_DATA_MODULE, with_data_module),
}
