"""Series: windows that overlap, splits by time, states that are carried on, odd losses."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from paceline import DataModule, Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping

from ..programs import right
from ..tasks_text import generator, series, windows


class Forecaster(TrainModule):
    """A recurrent net that predicts the next value of a window."""

    def __init__(self, width=24, outputs=1):
        super().__init__()
        self.rnn = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])

    def training_step(self, batch):
        x, y = batch
        return F.mse_loss(self(x).squeeze(1), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("mae", (self(x).squeeze(1) - y).abs().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def by_time(values: torch.Tensor, at: int, length: int = 24):
    """Windows before a point of time, and windows that begin behind it."""
    return TensorDataset(*windows(values[:at], length)), TensorDataset(*windows(values[at:], length))


@right(area="series")
def overlapping_windows_cut_between_the_parts(trainer):
    """Windows overlap within each part; those over the cut are in neither part."""
    train, val = by_time(series(), 900)
    trainer(max_epochs=3).fit(Forecaster(), DataLoader(train, 64, shuffle=True), DataLoader(val, 128))


@right(
    area="series",
    debatable="the validation windows read values that training has read as well, as forecasts do",
)
def validation_windows_that_look_back(trainer):
    """The first windows of validation begin in the training time; none of their targets does."""
    values, at, length = series(), 900, 24
    train = TensorDataset(*windows(values[:at], length))
    val = TensorDataset(*windows(values[at - length :], length))
    trainer(max_epochs=3).fit(Forecaster(), DataLoader(train, 64, shuffle=True), DataLoader(val, 128))


@right(area="series", debatable="the windows of an epoch come in the order of time")
def state_carried_from_batch_to_batch(trainer):
    """Truncated backpropagation: batches follow each other in time, the state is detached between them."""

    class Stateful(Forecaster):
        def __init__(self):
            super().__init__()
            self.state = None

        def on_train_epoch_start(self):
            self.state = None

        def training_step(self, batch):
            x, y = batch
            hidden, state = self.rnn(x, self.state)
            self.state = state.detach()
            return F.mse_loss(self.head(hidden), y)

        def validation_step(self, batch):
            x, y = batch
            self.log("loss", F.mse_loss(self.head(self.rnn(x)[0]), y))

    class Streams(Dataset):
        """Eight streams side by side; item i of a batch goes on where item i of the last one ended."""

        def __init__(self, values, streams=8, length=12):
            steps = (len(values) - 1) // (streams * length) * length
            kept = values[: streams * steps + 1]
            x, y = kept[:-1].view(streams, steps), kept[1:].view(streams, steps)
            cut = [one.unfold(1, length, length).transpose(0, 1).flatten(0, 1)[..., None] for one in (x, y)]
            self.x, self.y = cut

        def __len__(self):
            return len(self.x)

        def __getitem__(self, index):
            return self.x[index], self.y[index]

    values = series(1600)
    train, val = Streams(values[:1300]), Streams(values[1300:], 1)
    trainer(max_epochs=5, clip_grad_norm=1.0).fit(Stateful(), DataLoader(train, 8), DataLoader(val, 25))


@right(area="series")
def data_module_that_scales_by_training_statistics(trainer):
    """A series of thousands is scaled by the mean of its training part alone, and errors scaled back."""

    class Meter(DataModule):
        def prepare_data(self):
            self.values = 4000 + 900 * series(1000)

        def setup(self, stage=None):
            past = self.values[:800]
            self.mean, self.std = past.mean(), past.std()
            self.parts = by_time((self.values - self.mean) / self.std, 800)

        def train_dataloader(self):
            return DataLoader(self.parts[0], 32, shuffle=True, drop_last=True)

        def val_dataloader(self):
            return DataLoader(self.parts[1], 64)

    class InUnits(Forecaster):
        def validation_step(self, batch):
            error = (self(batch[0]).squeeze(1) - batch[1]) * data.std
            self.log_dict({"mae": error.abs().mean(), "loss": error.square().mean()})

    data = Meter()
    trainer(max_epochs=3).fit(InUnits(), datamodule=data)


@right(area="series")
def quantiles_by_the_pinball_loss(trainer):
    """Three outputs against one target: the differences are (N, 3) on purpose."""

    class Quantiles(Forecaster):
        def __init__(self):
            super().__init__(outputs=3)
            self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

        def pinball(self, batch):
            x, y = batch
            difference = y[:, None] - self(x)
            return torch.maximum(self.levels * difference, (self.levels - 1) * difference).mean()

        def training_step(self, batch):
            return self.pinball(batch)

        def validation_step(self, batch):
            low, _, high = self(batch[0]).T
            inside = (batch[1] >= low) & (batch[1] <= high)
            self.log_dict({"loss": self.pinball(batch), "coverage": inside.float().mean()})

    train, val = by_time(series(), 900)
    trainer(max_epochs=3).fit(Quantiles(), DataLoader(train, 64, shuffle=True), DataLoader(val, 128))


@right(area="series")
def density_whose_loss_falls_below_zero(trainer):
    """A Gaussian likelihood with a variance of its own: the loss is negative when it is good."""

    class Density(Forecaster):
        def __init__(self):
            super().__init__(outputs=2)
            self.criterion = nn.GaussianNLLLoss()

        def loss_of(self, batch):
            mean, width = self(batch[0]).unbind(1)
            return self.criterion(mean, batch[1], F.softplus(width) + 1e-4)

        def training_step(self, batch):
            return self.loss_of(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss_of(batch))

    train, val = by_time(series(), 900)
    best = Checkpoint(monitor="val/loss", mode="min", keep=1)
    trainer(max_epochs=4, callbacks=[best]).fit(
        Density(), DataLoader(train, 64, shuffle=True), DataLoader(val, 128)
    )


@right(area="series")
def counts_by_a_poisson_loss(trainer):
    """The net gives the logarithm of a rate; targets are counts of which many are 0."""
    hours = torch.arange(1000)
    rate = torch.exp(0.3 + torch.sin(hours * (2 * math.pi / 24)))
    counts = torch.poisson(rate, generator=generator(3))

    class Counts(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.net(torch.log1p(x.flatten(1))).squeeze(-1)

        def training_step(self, batch):
            return F.poisson_nll_loss(self(batch[0]), batch[1], log_input=True)

        def validation_step(self, batch):
            found = self(batch[0])
            self.log("loss", F.poisson_nll_loss(found, batch[1]))
            self.log("mae", (found.exp() - batch[1]).abs().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3, weight_decay=1e-3)

    train, val = by_time(counts, 800)
    trainer(max_epochs=5).fit(Counts(), DataLoader(train, 32, shuffle=True), DataLoader(val, 200))


@right(area="series")
def causal_convolutions_over_whole_windows(trainer):
    """Each place predicts the value after it; the padding is on the left alone, so nothing leaks."""

    class Causal(nn.Conv1d):
        def forward(self, x):
            return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))

    class Dilated(TrainModule):
        def __init__(self):
            super().__init__()
            layers = []
            for depth, inputs in enumerate((1, 16, 16)):
                layers += [Causal(inputs, 16, 3, dilation=2**depth), nn.ReLU()]
            self.net = nn.Sequential(*layers, nn.Conv1d(16, 1, 1))

        def step(self, batch):
            (x,) = batch
            return F.smooth_l1_loss(self.net(x[:, None, :-1])[:, 0], x[:, 1:])

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    values = series(1400)
    train, val = (TensorDataset(part.unfold(0, 48, 4)) for part in (values[:1100], values[1100:]))
    trainer(max_epochs=4).fit(Dilated(), DataLoader(train, 32, shuffle=True), DataLoader(val, 64))


@right(area="series")
def network_beside_the_last_value(trainer):
    """The net begins at 0 and predicts what is added to the last value: its first outputs are constant."""

    class Residual(Forecaster):
        def __init__(self):
            super().__init__()
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            return x[:, -1] + super().forward(x)

    train, val = by_time(series(), 900)
    stop = EarlyStopping("val/mae", patience=3)
    trainer(max_epochs=4, callbacks=[stop]).fit(
        Residual(), DataLoader(train, 64, shuffle=True), DataLoader(val, 128)
    )


@right(area="series")
def sensors_one_of_which_is_silent(trainer):
    """One of five channels is 0 all the time, and another is a copy of the clock."""
    values, hours = series(1000), torch.arange(1000) / 500 - 1
    channels = torch.stack([values, values.roll(3), torch.zeros(1000), hours, values.square() - 0.6], 1)

    class Sensors(TrainModule):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(5, 24, batch_first=True), nn.Linear(24, 1)

        def step(self, batch):
            return F.mse_loss(self.head(self.rnn(batch["past"])[0][:, -1]), batch["next"])

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return {"loss": self.step(batch)}

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.parameters(), lr=2e-3)

    samples = [
        {"past": channels[end - 16 : end], "next": channels[end, :1]} for end in range(16, len(channels))
    ]
    train, val = Subset(samples, range(750)), Subset(samples, range(770, len(samples)))
    trainer(max_epochs=3).fit(Sensors(), DataLoader(train, 32, shuffle=True), DataLoader(val, 100))


@right(area="series")
def folds_that_grow_with_time(trainer):
    """Three runs, each with more of the past: what one validates on is trained on in the next."""
    values = series(1200)
    for at in (600, 800, 1000):
        train = TensorDataset(*windows(values[:at]))
        val = TensorDataset(*windows(values[at : at + 200]))
        fold: Trainer = trainer(max_epochs=2)
        fold.fit(Forecaster(12), DataLoader(train, 64, shuffle=True), DataLoader(val, 200))
