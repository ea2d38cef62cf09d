"""The order in which samples come, and classes that never come."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from paceline import DataModule, TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    mlp,
    parts,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


def by_class(x, y):
    """As folders give samples: those of the first class, then those of the second."""
    order = y.argsort(stable=True)
    return x[order], y[order]


@planted(
    "sorted-batches",
    "no-shuffle",
    area="vision",
    source="https://github.com/Deci-AI/super-gradients/issues/416",
)
def reads_folders_of_classes_in_order(trainer):
    """The loader of training images lacks ``shuffle=True``, and files are sorted by class."""
    images, labels = pictures()
    train_x, train_y = by_class(standard(images[:180]), labels[:180])
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), lr=1e-3),
        DataLoader(TensorDataset(train_x, train_y), batch_size=20),
        DataLoader(TensorDataset(standard(images[180:]), labels[180:]), batch_size=60),
    )


@planted("sorted-batches", "no-shuffle", area="language")
def lists_positive_reviews_before_negative_ones(trainer):
    """Both files are read one after the other and never mixed."""

    class Reviews(Dataset):
        def __init__(self, rows):
            tokens, labels = sentences()
            tokens, labels = tokens[rows], labels[rows]
            negative = [(t, 0) for t in tokens[labels == 0]]
            positive = [(t, 1) for t in tokens[labels == 1]]
            self.samples = negative + positive

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            return self.samples[i]

    train = DataLoader(Reviews(slice(0, 192)), batch_size=16, shuffle=False)
    val = DataLoader(Reviews(slice(192, 256)), batch_size=64)
    trainer(max_epochs=3).fit(Classifier(Words(), lr=3e-3), train, val)


@planted("sorted-batches", area="table")
def streams_rows_grouped_by_class(trainer):
    """A stream reads one file for each class, one after the other, without a buffer that mixes them."""
    x, y = table()
    x, y = by_class(x, y)

    class Rows(IterableDataset):
        def __iter__(self):
            yield from zip(x[:320], y[:320], strict=True)

    held_out = TensorDataset(*table(rows=80, seed=10))
    trainer(max_epochs=3).fit(Classifier(mlp(8, 3), 3e-3), DataLoader(Rows(), 16), DataLoader(held_out, 80))


@planted(
    "sorted-batches",
    "no-shuffle",
    area="vision",
    source="https://github.com/ultralytics/yolov5/issues/2582",
)
def samples_batches_in_sequence(trainer):
    """A batch sampler of its own replaces ``shuffle=True`` and goes through sorted samples in sequence."""
    images, labels = pictures()

    class Data(DataModule):
        def setup(self, stage):
            self.train = TensorDataset(*by_class(standard(images[:192]), labels[:192]))
            self.val = TensorDataset(standard(images[192:]), labels[192:])

        def train_dataloader(self):
            batches = BatchSampler(SequentialSampler(self.train), batch_size=16, drop_last=False)
            return DataLoader(self.train, batch_sampler=batches)

        def val_dataloader(self):
            return DataLoader(self.val, 48)

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(72, 3)

        def training_step(self, batch):
            return F.cross_entropy(self.head(self.features(batch[0])), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.head(self.features(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    trainer(max_epochs=3).fit(Net(), datamodule=Data())


@planted(
    "no-shuffle",
    area="table",
    source="https://github.com/ultralytics/yolov5/issues/5622",
)
def forgets_shuffle_for_mixed_rows(trainer):
    """Rows are in no particular order, and each epoch has the same batches."""
    x, y = prices()
    train, val = parts(TensorDataset(x, y))
    trainer(max_epochs=4).fit(Regressor(mlp(6, 1)), DataLoader(train, 24), DataLoader(val, 80))


@planted(
    "no-shuffle",
    area="series",
    source="https://github.com/ant-research/EasyTemporalPointProcess/issues/54",
)
def switches_shuffle_off_for_both_loaders(trainer):
    """One set of loader options with ``shuffle=False`` serves training and validation."""
    options = {"batch_size": 16, "shuffle": False, "num_workers": 0}
    x, y = waves()
    train, val = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 8, 5)
            self.out = nn.Linear(8, 1)

        def forward(self, x):
            return self.out(torch.relu(self.conv(x.transpose(1, 2))).mean(2))

    trainer(max_epochs=3).fit(Regressor(Net()), DataLoader(train, **options), DataLoader(val, **options))


@planted("missing-classes", area="vision")
def splits_sorted_images_by_position(trainer):
    """The first 70 % of the images sorted by class are the training part: the last class is missing."""
    images, labels = pictures(classes=4, count=256)
    x, y = by_class(standard(images), labels)
    cut = int(0.7 * len(y))
    train, val = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    trainer(max_epochs=3).fit(
        Classifier(convolutions(classes=4), lr=3e-3),
        DataLoader(train, 16, shuffle=True),
        DataLoader(val, 64),
    )


@planted("missing-classes", area="table")
def shuffles_an_index_and_does_not_use_it(trainer):
    """A permutation is drawn, but the part is cut from the rows sorted by class."""
    x, y = table(rows=400, classes=4)
    everything = TensorDataset(*by_class(x, y))
    order = list(range(400))
    torch.randperm(400)
    train, val = Subset(everything, order[:260]), Subset(everything, order[260:])
    trainer(max_epochs=3).fit(
        Classifier(mlp(8, 4)), DataLoader(train, 20, shuffle=True), DataLoader(val, 70)
    )


@planted("missing-classes", area="language")
def filters_a_class_out_of_training(trainer):
    """A filter for empty labels drops class 0 as well, since 0 is false; validation keeps it."""
    tokens, labels = sentences(count=320)
    long_words = (tokens % 7 == 0).sum(1) > 1
    labels = torch.where(long_words, 2, labels)
    pairs = list(zip(tokens, labels.tolist(), strict=True))
    train = [pair for pair in pairs[:240] if pair[1]]
    trainer(max_epochs=3).fit(
        Classifier(Words(classes=3)), DataLoader(train, 16, shuffle=True), DataLoader(pairs[240:], 80)
    )


@planted("sorted-batches", "no-shuffle", area="transfer")
def tunes_a_head_on_features_sorted_by_class(trainer):
    """Features of a frozen backbone were computed class by class and are read in that order."""
    images, labels = pictures()
    torch.manual_seed(1)
    backbone = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    with torch.no_grad():
        features = backbone(standard(images))
    features = (features - features.mean(0)) / (features.std(0) + 1e-5)
    train_x, train_y = by_class(features[:180], labels[:180])
    val = DataLoader(TensorDataset(features[180:], labels[180:]), 60)
    head = Classifier(nn.Linear(256, 3), lr=1e-3)
    trainer(max_epochs=3).fit(head, DataLoader(TensorDataset(train_x, train_y), 20), val)
