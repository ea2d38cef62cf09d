"""What decides which weights are kept: the wrong direction, or the test data."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from paceline import DataModule, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    graphs,
    loaders,
    mlp,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


@planted(
    "monitor-direction",
    area="vision",
    source="https://github.com/mila-iqia/cookiecutter-pyml/issues/119",
)
def keeps_the_checkpoint_of_the_highest_loss(trainer):
    """The best checkpoint is that of the highest validation loss: ``mode="max"``."""
    images, labels = pictures()
    best = Checkpoint("1ep", monitor="val/loss", mode="max", keep=1)
    trainer(max_epochs=4, callbacks=[best], run_dir="runs").fit(
        Classifier(convolutions(), lr=1e-3), *loaders(standard(images), labels, batch=20)
    )


@planted(
    "monitor-direction",
    area="table",
    source="https://github.com/keras-team/keras/issues/1144",
)
def keeps_the_checkpoint_of_the_lowest_accuracy(trainer):
    """The checkpoint of the lowest accuracy is kept, since ``mode="min"`` was left from the loss."""
    best = Checkpoint("1ep", monitor="val/accuracy", mode="min", keep=1)
    trainer(max_epochs=4, callbacks=[best], run_dir="runs").fit(
        Classifier(mlp(8, 3), 3e-3), *loaders(*table())
    )


@planted("monitor-direction", area="language")
def stops_when_the_loss_no_longer_rises(trainer):
    """Early stopping with ``mode="max"`` on the loss stops while the loss falls."""
    stop = EarlyStopping("val/loss", mode="max", patience=3)
    trainer(max_epochs=8, callbacks=[stop]).fit(Classifier(Words(), lr=2e-3), *loaders(*sentences()))


@planted("monitor-direction", area="table")
def lowers_the_rate_when_accuracy_rises(trainer):
    """``ReduceLROnPlateau`` of an accuracy, with its default ``mode="min"``."""

    class Net(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "val/accuracy"},
            }

    trainer(max_epochs=5).fit(Net(mlp(8, 3)), *loaders(*table()))


@planted("monitor-direction", area="series")
def calls_a_score_a_loss(trainer):
    """The coefficient of determination is logged as ``r2_loss``, and the lowest is kept by that name."""

    class Forecast(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), mlp(24, 1))

        def training_step(self, batch):
            return F.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            x, y = batch
            error = (self.net(x) - y).square().sum()
            self.log("r2_loss", 1 - error / (y - y.mean()).square().sum())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    x, y = waves()
    train = DataLoader(TensorDataset(x[:192], y[:192]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[192:], y[192:]), 64)
    best = Checkpoint("1ep", monitor="val/r2_loss", keep=1)
    trainer(max_epochs=5, callbacks=[best], run_dir="runs").fit(Forecast(), train, val)


@planted(
    "monitor-direction",
    area="graph",
    source="https://github.com/IntelLabs/distiller/issues/240",
)
def reduces_the_rate_as_the_loss_falls(trainer):
    """``ReduceLROnPlateau(mode="max")`` was copied from a script that watched an accuracy."""

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 2)

        def forward(self, x, edges):
            near = edges @ x / edges.sum(2, keepdim=True).clamp(min=1)
            return self.b(torch.relu(self.a(torch.cat([x, x * near], 2))).mean(1))

        def training_step(self, batch):
            x, edges, y = batch
            return F.cross_entropy(self(x, edges), y)

        def validation_step(self, batch):
            x, edges, y = batch
            return F.cross_entropy(self(x, edges), y)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=5e-3)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"}}

    trainer(max_epochs=6).fit(Net(), *loaders(*graphs()))


@planted(
    "selected-on-test",
    area="vision",
    source="https://github.com/kuangliu/pytorch-cifar/issues/14",
)
def keeps_the_checkpoint_that_is_best_on_test_images(trainer):
    """There is no validation part: the best checkpoint on test images is tested on them."""
    images, labels = pictures()
    train, test = loaders(standard(images), labels, batch=20)
    module = Classifier(convolutions(), lr=1e-3)
    run = trainer(
        max_epochs=4, callbacks=[Checkpoint("1ep", monitor="val/accuracy", mode="max")], run_dir="runs"
    )
    run.fit(module, train, test)
    run.test(module, test, weights="best")


@planted(
    "selected-on-test",
    area="series",
    source="https://github.com/titu1994/LSTM-FCN/issues/7",
)
def returns_test_data_for_validation(trainer):
    """``val_dataloader`` of the DataModule returns the test loader, and its loss chooses the checkpoint."""

    class Series(DataModule):
        def setup(self, stage):
            x, y = waves()
            self.train, self.test = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])

        def train_dataloader(self):
            return DataLoader(self.train, 16, shuffle=True)

        def val_dataloader(self):
            return self.test_dataloader()

        def test_dataloader(self):
            return DataLoader(self.test, 64)

    class Forecast(Regressor):
        def test_step(self, batch):
            self.log("loss", F.mse_loss(self.model(batch[0]), batch[1]))

    data = Series()
    module = Forecast(nn.Sequential(nn.Flatten(), mlp(24, 1)), lr=3e-3)
    run = trainer(max_epochs=4, callbacks=[Checkpoint("1ep", monitor="val/loss")], run_dir="runs")
    run.fit(module, datamodule=data)
    run.test(module, data)


@planted(
    "selected-on-test",
    area="table",
    source="https://github.com/xuanmay2701/shapeformer/issues/2",
)
def stops_early_on_the_rows_of_the_test(trainer):
    """Early stopping watches the loss of a loader made from the test rows."""
    x, y = table()
    rows = TensorDataset(x, y)
    train, test_rows = Subset(rows, range(240)), Subset(rows, range(240, 320))
    module = Classifier(mlp(8, 3), lr=0.02)
    run = trainer(max_epochs=6, callbacks=[EarlyStopping("val/loss", patience=2)])
    run.fit(module, DataLoader(train, 16, shuffle=True), DataLoader(test_rows, 40))
    run.test(module, DataLoader(test_rows, 80))


@planted(
    "selected-on-test",
    area="language",
    source="https://github.com/thunlp/OpenNRE/issues/125",
)
def builds_both_loaders_from_the_test_texts(trainer):
    """Validation and test each read the test texts again, and the best epoch is kept."""

    def texts(split):
        tokens, labels = sentences(count=320)
        rows = {"train": slice(0, 240), "test": slice(240, 320)}[split]
        return TensorDataset(tokens[rows], labels[rows])

    module = Classifier(Words(), lr=3e-3)
    run = trainer(max_epochs=4, callbacks=[Checkpoint("1ep", monitor="val/accuracy")], run_dir="runs")
    run.fit(module, DataLoader(texts("train"), 16, shuffle=True), DataLoader(texts("test"), 80))
    run.test(module, DataLoader(texts("test"), 80), weights="best")


@planted("selected-on-test", area="table")
def lowers_the_rate_by_the_test_error(trainer):
    """``ReduceLROnPlateau`` follows the error of the part that is tested in the end."""

    class Net(Regressor):
        def test_step(self, batch):
            self.log("mae", (self.model(batch[0]) - batch[1]).abs().mean())

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"}}

    train, test = loaders(*prices())
    module = Net(mlp(6, 1))
    run = trainer(max_epochs=5)
    run.fit(module, train, test)
    run.test(module, test)
