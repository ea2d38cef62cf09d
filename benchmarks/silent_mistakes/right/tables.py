"""Tables: columns and targets that look wrong and are not, classes that are rare, losses of one's own."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler, random_split

from paceline import TrainModule, seed_everything
from paceline.callbacks import EarlyStopping

from ..programs import right
from ..tasks_text import generator, table


class Regressor(TrainModule):
    """Two layers and a value."""

    def __init__(self, columns=8, lr=0.01):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(columns, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("loss", F.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def parts(*columns: torch.Tensor, held_out: int = 128):
    data = TensorDataset(*columns)
    train, val = random_split(data, [len(data) - held_out, held_out], generator(9))
    return DataLoader(train, 32, shuffle=True), DataLoader(val, held_out)


def of_classes(rare: float, apart: float = 2.0, count: int = 900, columns: int = 6):
    """Rows of which a share belongs to the second class."""
    draws = generator(2)
    y = (torch.rand(count, generator=draws) < rare).long()
    x = torch.randn(count, columns, generator=draws)
    x[:, 0] += apart * y
    return x, y


def classifier(columns: int, classes: int, loss=F.cross_entropy):
    net = nn.Sequential(nn.Linear(columns, 24), nn.GELU(), nn.Linear(24, classes))
    accuracy = {"accuracy": lambda logits, y: (logits.argmax(1) == y).float().mean()}
    return TrainModule.of(net, loss, partial(torch.optim.AdamW, lr=0.01), metrics=accuracy)


@right(area="table")
def prices_learned_as_logarithms(trainer):
    """Targets from tens to millions: the loss is of their logarithm, the metric of the prices."""
    x, y = table(700)
    prices = torch.exp(2 * y + 9)
    center = prices.log().mean()

    class Prices(Regressor):
        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1].log() - center)

        def validation_step(self, batch):
            found = self(batch[0])
            self.log("loss", F.mse_loss(found, batch[1].log() - center))
            self.log("median_error", ((found + center).exp() / batch[1] - 1).abs().median())

    trainer(max_epochs=5).fit(Prices(), *parts(x, prices))


@right(area="table")
def rare_class_with_a_weight(trainer):
    """Nine of ten rows are of one class; the other one's weight makes up for it."""
    x, y = of_classes(0.1)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 6.0]))
    trainer(max_epochs=4).fit(classifier(6, 2, loss), *parts(x, y))


@right(area="table")
def rare_class_drawn_more_often(trainer):
    """A sampler with replacement draws rare rows many times in an epoch, and some rows not at all."""
    x, y = of_classes(0.06)
    train, val = TensorDataset(x[:700], y[:700]), TensorDataset(x[700:], y[700:])
    weights = 1.0 / torch.bincount(y[:700]).float()
    sampler = WeightedRandomSampler(weights[y[:700]].tolist(), 700)
    trainer(max_epochs=4).fit(
        classifier(6, 2), DataLoader(train, 32, sampler=sampler), DataLoader(val, 200)
    )


@right(area="table")
def rare_class_of_which_most_batches_have_none(trainer):
    """One row in a hundred is positive, so most batches are of one class, though they are shuffled."""
    x, y = of_classes(0.02, 5.0)

    class Rare(Regressor):
        def __init__(self):
            super().__init__(6)
            nn.init.constant_(self.net[2].bias, -3.5)  # as rare as the class

        def training_step(self, batch):
            return F.binary_cross_entropy_with_logits(self(batch[0]), batch[1].float())

        def validation_step(self, batch):
            self.log("loss", F.binary_cross_entropy_with_logits(self(batch[0]), batch[1].float()))

    trainer(max_epochs=4).fit(Rare(), *parts(x, y))


@right(area="table")
def categories_as_one_hot_columns(trainer):
    """Most inputs are 0: sixty columns of which two are set in a row."""
    draws = generator(4)
    city, month = (torch.randint(count, (900,), generator=draws) for count in (48, 12))
    effect = torch.randn(48, generator=draws)
    x = torch.cat([F.one_hot(city, 48), F.one_hot(month, 12)], 1).float()
    y = effect[city] + torch.sin(month.float()) + 0.1 * torch.randn(900, generator=draws)
    trainer(max_epochs=5).fit(Regressor(60), *parts(x, y))


@right(area="table")
def columns_that_never_change(trainer):
    """Two columns are constant in this month's table; the model has them for the next one."""
    x, y = table(600)
    x = torch.cat([x, torch.ones(600, 1), torch.zeros(600, 1)], 1)
    trainer(max_epochs=4).fit(Regressor(10), *parts(x, y))


@right(area="table")
def column_that_says_nearly_all(trainer):
    """One measured column correlates with the target by 0.95, as a good sensor does: it is no leak."""
    x, y = table(600)
    sensor = y / y.std() + 0.33 * torch.randn(600, generator=generator(6))
    trainer(max_epochs=4).fit(Regressor(9), *parts(torch.cat([x, sensor[:, None]], 1), y))


@right(area="table")
def target_that_is_the_input(trainer):
    """An autoencoder: what it is to give is what it gets, through a narrow layer."""
    x, _ = table(600, 4)
    mixed = x @ torch.randn(4, 12, generator=generator(7)) / 2

    class Autoencoder(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 4))
            self.decoder = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 12))

        def training_step(self, batch):
            (x,) = batch
            return F.mse_loss(self.decoder(self.encoder(x)), x)

        def validation_step(self, batch):
            return self.training_step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=6).fit(Autoencoder(), *parts(mixed))


@right(area="table")
def regression_that_begins_at_zero(trainer):
    """A linear model all of whose weights are 0 at first: its problem is convex, nothing stays equal."""
    x, y = of_classes(0.4)

    class Logistic(TrainModule):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(()))

        def step(self, batch):
            logits = batch[0] @ self.weight + self.bias
            self.log("accuracy", ((logits > 0) == batch[1].bool()).float().mean())
            return F.binary_cross_entropy_with_logits(logits, batch[1].float())

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    trainer(max_epochs=3).fit(Logistic(), *parts(x, y))


@right(area="table")
def shares_between_zero_and_one(trainer):
    """Soft targets: binary cross-entropy of probabilities that the net has by a sigmoid, given once."""
    x, y = table(600)
    share = torch.sigmoid(y)

    class Shares(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1), nn.Sigmoid())
            self.criterion = nn.BCELoss()

        def training_step(self, batch):
            return self.criterion(self.net(batch[0]).squeeze(-1), batch[1])

        def validation_step(self, batch):
            found = self.net(batch[0]).squeeze(-1)
            return {"loss": self.criterion(found, batch[1]), "mae": (found - batch[1]).abs().mean()}

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    trainer(max_epochs=5).fit(Shares(), *parts(x, share))


@right(area="table")
def classes_in_order_by_thresholds(trainer):
    """An ordinal model: four targets of 0 and 1 for each row, and one weight for all thresholds."""
    x, y = table(700)
    grade = torch.bucketize(y, torch.tensor([-1.5, -0.5, 0.5, 1.5]))

    class Ordinal(Regressor):
        def __init__(self):
            super().__init__()
            self.thresholds = nn.Parameter(torch.linspace(-1, 1, 4))

        def logits(self, x):
            return self(x)[:, None] - self.thresholds  # (N, 1) - (4,)

        def training_step(self, batch):
            above = (batch[1][:, None] > torch.arange(4)).float()
            return F.binary_cross_entropy_with_logits(self.logits(batch[0]), above)

        def validation_step(self, batch):
            found = (self.logits(batch[0]) > 0).sum(1)
            self.log("off_by", (found - batch[1]).abs().float().mean())

    trainer(max_epochs=5).fit(Ordinal(), *parts(x, grade))


@right(area="table", source="https://arxiv.org/abs/1606.00931")
def survival_by_sets_at_risk(trainer):
    """A Cox loss: each row's term has all rows of its batch that were at risk as long."""
    x, y = table(800)
    time = torch.exp(-y) * torch.empty(800).exponential_(generator=generator(8))
    event = (time < 3).float()

    class Cox(Regressor):
        def step(self, batch):
            x, time, event = batch
            risk = self(x)[time.argsort(descending=True)]
            event = event[time.argsort(descending=True)]
            return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)

        def training_step(self, batch):
            return {"loss": self.step(batch), "weight": batch[2].sum()}

        def validation_step(self, batch):
            self.log("loss", self.step(batch), weight=batch[2].sum())

    trainer(max_epochs=4).fit(Cox(lr=5e-3), *parts(x, time.clamp(max=3), event))


@right(area="table")
def quarters_held_out_in_turn(trainer):
    """Each of four modules validates on a quarter that the other three train on."""
    x, y = table(400)
    data, order = TensorDataset(x, y), torch.randperm(400, generator=generator(3))
    scores = []
    for fold in order.chunk(4):
        seed_everything(1)
        rest = order[~torch.isin(order, fold)]
        run = trainer(max_epochs=3)
        run.fit(
            Regressor(),
            DataLoader(Subset(data, rest.tolist()), 32, shuffle=True),
            DataLoader(Subset(data, fold.tolist()), 100),
        )
        scores.append(run.metrics["val/loss"])
    assert len(scores) == 4


@right(area="table")
def twenty_rows_in_all(trainer):
    """Tiny data: one batch of sixteen rows is an epoch, and four rows are held out."""
    x, y = table(20)
    train = DataLoader(TensorDataset(x[:16, :4], y[:16]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[16:, :4], y[16:]), 4)
    trainer(max_epochs=20, callbacks=[EarlyStopping("val/loss", patience=10)]).fit(Regressor(4), train, val)
