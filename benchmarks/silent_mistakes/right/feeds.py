"""Where samples come from: streams, several loaders, parts of the data on purpose, logged values."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
    random_split,
)

from paceline import CombinedLoader, DataModule, Mixture, TrainModule
from paceline.callbacks import Checkpoint, Evaluator

from ..programs import right
from ..tasks_text import generator, table

ROWS = 640


class Rows(TrainModule):
    """A value of a row."""

    def __init__(self, lr=0.01):
        super().__init__()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)

    def training_step(self, batch):
        x, y = batch
        return F.mse_loss(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("loss", F.mse_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def split(held_out=128):
    data = TensorDataset(*table(ROWS + held_out))
    return random_split(data, [ROWS, held_out], generator(1))


class Records(IterableDataset):
    """Rows one after another, divided among workers, mixed in a buffer."""

    def __init__(self, rows, buffer=64):
        self.rows, self.buffer = rows, buffer

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        held = []
        for index in range(first, len(self.rows), step):
            held.append(self.rows[index])
            if len(held) >= self.buffer:
                yield held.pop(int(torch.randint(len(held), ())))
        while held:
            yield held.pop(int(torch.randint(len(held), ())))


@right(area="table")
def stream_that_its_workers_divide(trainer):
    """Each of two workers reads every second row; no shuffle=True, as a stream cannot have it."""
    train, val = split()
    loader = DataLoader(Records(train), 32, num_workers=2)
    trainer(max_epochs=2).fit(Rows(), loader, DataLoader(val, 128))


@right(area="table")
def stream_without_a_length(trainer):
    """Simulated rows without an end: an epoch is what limit_train_batches says."""

    class Simulated(IterableDataset):
        def __iter__(self):
            while True:
                x = torch.randn(8)
                yield x, x[0] * x[1] + 0.1 * torch.randn(())

    val = TensorDataset(x := torch.randn(128, 8, generator=generator(0)), x[:, 0] * x[:, 1])
    settings = {"max_epochs": 3, "limit_train_batches": 20}
    trainer(**settings).fit(Rows(), DataLoader(Simulated(), 32), DataLoader(val, 128))


@right(area="table")
def loader_of_batches_made_by_hand(trainer):
    """Batches are cut from tensors by a generator that mixes them anew each epoch."""

    class Batches:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __len__(self):
            return len(self.x) // 32

        def __iter__(self):
            for part in torch.randperm(len(self.x))[: len(self) * 32].view(-1, 32):
                yield self.x[part], self.y[part]

    x, y = table(ROWS)
    val = TensorDataset(*(one[512:] for one in (x, y)))
    trainer(max_epochs=3).fit(Rows(), Batches(x[:512], y[:512]), DataLoader(val, 128))


@right(area="table")
def part_of_the_training_data_validated_besides(trainer):
    """An Evaluator called "train_subset" looks at training rows, beside the validation on others."""
    train, val = split()
    some = DataLoader(Subset(train, range(0, ROWS, 5)), 128)
    trainer(max_epochs=3, callbacks=[Evaluator(some, "train_subset")]).fit(
        Rows(), DataLoader(train, 32, shuffle=True), DataLoader(val, 128)
    )


@right(area="table")
def tasks_of_which_a_batch_has_one(trainer):
    """Batches are of one task or the other, so that one head has no gradient in a step."""

    class TwoHeads(Rows):
        def __init__(self):
            super().__init__()
            self.head = nn.ModuleDict({"value": nn.Linear(32, 1), "sign": nn.Linear(32, 1)})

        def loss_of(self, task, x, y):
            found = self.head[task](self.body(x)).squeeze(-1)
            if task == "sign":
                return F.binary_cross_entropy_with_logits(found, (y > 0).float())
            return F.mse_loss(found, y)

        def training_step(self, batch):
            task, x, y = batch
            return self.loss_of(task, x, y)

        def validation_step(self, batch):
            for task in ("value", "sign"):
                self.log(f"{task}_loss", self.loss_of(task, *batch))

    class InTurn:
        def __init__(self, data):
            self.loader = DataLoader(data, 32, shuffle=True)

        def __len__(self):
            return len(self.loader)

        def __iter__(self):
            for index, (x, y) in enumerate(self.loader):
                yield ("value", "sign")[index % 2], x, y

    train, val = split()
    trainer(max_epochs=4).fit(TwoHeads(), InTurn(train), DataLoader(val, 128))


@right(area="table")
def labelled_and_unlabelled_rows_together(trainer):
    """A loader of few labelled rows begins again while one of many unlabelled ones goes on."""

    class Consistent(Rows):
        def training_step(self, batch):
            x, y = batch["labelled"]
            (other,) = batch["unlabelled"]
            with torch.no_grad():
                wanted = self(other)
            noisy = self(other + 0.1 * torch.randn_like(other))
            supervised, consistency = F.mse_loss(self(x), y), F.mse_loss(noisy, wanted)
            self.log_dict({"supervised": supervised, "consistency": consistency})
            return supervised + 0.5 * consistency

    train, val = split()
    few, rest = Subset(train, range(128)), TensorDataset(torch.stack([x for x, _ in train])[128:])
    both = CombinedLoader(
        {
            "labelled": DataLoader(few, 16, shuffle=True, drop_last=True),
            "unlabelled": DataLoader(rest, 32, shuffle=True, drop_last=True),
        }
    )
    trainer(max_epochs=4).fit(Consistent(), both, DataLoader(val, 128))


@right(area="table")
def mixture_of_a_small_and_a_large_set(trainer):
    """A small set has a third of the samples, so its rows come several times in an epoch."""
    train, val = split()
    small, large = Subset(train, range(64)), Subset(train, range(64, ROWS))
    mixture = Mixture({large: 2 / 3, small: 1 / 3}, samples=576)
    trainer(max_epochs=3).fit(Rows(), DataLoader(mixture, 32), DataLoader(val, 128))


@right(area="table")
def noise_drawn_for_each_sample_anew(trainer):
    """Training rows are augmented, validation rows of the same class of dataset are not."""

    class Noisy(Dataset):
        def __init__(self, rows, noise=0.0):
            self.rows, self.noise = rows, noise

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            x, y = self.rows[index]
            return (x + self.noise * torch.randn_like(x) if self.noise else x), y

    class Data(DataModule):
        def setup(self, stage=None):
            train, val = split()
            self.train, self.val = Noisy(train, 0.1), Noisy(val)

        def train_dataloader(self):
            return DataLoader(self.train, 32, shuffle=True, num_workers=2, persistent_workers=True)

        def val_dataloader(self):
            return DataLoader(self.val, 64)

        def test_dataloader(self):
            return DataLoader(Noisy(TensorDataset(*table(100, seed=8))), 100)

    class Tested(Rows):
        def test_step(self, batch):
            self.validation_step(batch)

    data = Data()
    fitted = trainer(max_epochs=2, callbacks=[Checkpoint(monitor="val/loss")])
    fitted.fit(Tested(), datamodule=data)
    fitted.test(dataloader=data.test_dataloader())


@right(area="table")
def many_values_logged_in_both_phases(trainer):
    """Loops log a list of values under the same names in training and validation."""

    class Logged(Rows):
        def step(self, batch):
            x, y = batch
            error = self(x) - y
            for power, value in enumerate((error.abs().mean(), error.square().mean()), 1):
                self.log(f"error_{power}", value, prog_bar=power == 2)
            for name, part in self.named_children():
                self.log(f"norm/{name}", torch.stack([p.norm() for p in part.parameters()]).norm())
            self.log("largest", error.abs().max(), reduce="max")
            self.log("rows", float(len(y)), reduce="sum")
            return error.square().mean()

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            self.step(batch)

    train, val = split()
    trainer(max_epochs=2).fit(Logged(), DataLoader(train, 32, shuffle=True), DataLoader(val, 50))


@right(area="table")
def torchmetrics_for_values_that_are_no_means(trainer):
    """F1 and AUROC are kept as objects, which are reset by the trainer, one for each phase."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import BinaryAUROC, BinaryF1Score

    class Measured(Rows):
        def __init__(self):
            super().__init__()
            self.measured = MetricCollection([BinaryAUROC(), BinaryF1Score()])

        def training_step(self, batch):
            x, y = batch
            return F.binary_cross_entropy_with_logits(self(x), (y > 0).float())

        def validation_step(self, batch):
            x, y = batch
            self.measured.update(self(x).sigmoid(), (y > 0).long())
            self.log_dict(self.measured)

    train, val = split()
    trainer(max_epochs=3).fit(Measured(), DataLoader(train, 32, shuffle=True), DataLoader(val, 50))


@right(area="table")
def two_years_of_rows_joined(trainer):
    """Two sets are joined, sorted by year and shuffled; the last rows of each are held out."""
    years = [TensorDataset(*table(400, seed=seed)) for seed in (0, 1)]
    train = ConcatDataset([Subset(year, range(320)) for year in years])
    val = ConcatDataset([Subset(year, range(320, 400)) for year in years])
    trainer(max_epochs=3).fit(Rows(), DataLoader(train, 32, shuffle=True), DataLoader(val, 160))
