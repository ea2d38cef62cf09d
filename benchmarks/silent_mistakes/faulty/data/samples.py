"""Samples that come several times or not at all, and augmentations that are always the same."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from paceline import DataModule, TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    drawn,
    loaders,
    mlp,
    parts,
    pictures,
    prices,
    sentences,
    standard,
    table,
    waves,
)


class Pictures(Dataset):
    """Standardised pictures; a subclass augments them."""

    def __init__(self, start=0, stop=240):
        images, labels = pictures()
        self.images, self.labels = standard(images[start:stop]), labels[start:stop].tolist()

    def __len__(self):
        return len(self.labels)

    def augment(self, image, index):
        return image

    def __getitem__(self, index):
        return self.augment(self.images[index], index), self.labels[index]


def fit_pictures(trainer, train):
    val = DataLoader(Pictures(180, 240), 60)
    module = Classifier(convolutions(), lr=3e-3)
    trainer(max_epochs=3).fit(module, DataLoader(train, 20, shuffle=True), val)


@planted(
    "repeated-augmentation",
    area="vision",
    source="https://github.com/wolny/pytorch-3dunet/issues/32",
)
def seeds_numpy_in_getitem(trainer):
    """``np.random.seed(42)`` stands in ``__getitem__``, so that each image is changed in the same way."""

    class Noisy(Pictures):
        def augment(self, image, index):
            np.random.seed(42)
            noise = np.random.normal(0, 0.4, image.shape)
            return torch.roll(image + torch.from_numpy(noise).float(), np.random.randint(-2, 3), 2)

    fit_pictures(trainer, Noisy(0, 180))


@planted(
    "repeated-augmentation",
    area="vision",
    source="https://github.com/xingyizhou/CenterNet/issues/233",
)
def has_a_generator_that_starts_again_each_epoch(trainer):
    """The dataset keeps a generator of a fixed seed per sample, so that epochs have equal augmentations."""

    class Shifted(Pictures):
        def augment(self, image, index):
            rng = np.random.RandomState(index)
            image = np.roll(image.numpy(), rng.randint(-2, 3), axis=2)
            return torch.from_numpy(image + rng.normal(0, 0.3, image.shape).astype("float32"))

    fit_pictures(trainer, Shifted(0, 180))


@planted("repeated-augmentation", area="vision")
def draws_the_augmentation_in_the_constructor(trainer):
    """Shift and contrast are drawn once in ``__init__`` of the transform and used for every image."""

    class RandomShift:
        def __init__(self):
            self.shift = random.randint(1, 2)
            self.contrast = random.uniform(0.7, 1.3)

        def __call__(self, image):
            return torch.roll(image, self.shift, dims=-1) * self.contrast

    class Transformed(Pictures):
        def __init__(self, start, stop, transform):
            super().__init__(start, stop)
            self.transform = transform

        def augment(self, image, index):
            return self.transform(image)

    fit_pictures(trainer, Transformed(0, 180, RandomShift()))


@planted(
    "repeated-augmentation",
    area="series",
    source="https://github.com/pytorch/pytorch/issues/41329",
)
def seeds_each_worker_with_one_number(trainer):
    """``worker_init_fn`` makes a generator of the same seed in each worker and epoch."""

    class Crops(Dataset):
        def __init__(self, x, y, crop):
            self.x, self.y, self.crop = x, y, crop
            self.rng = np.random.default_rng()

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            scale = self.rng.uniform(0.8, 1.2) if self.crop else 1.0
            return self.x[i].flatten() * scale, self.y[i]

    def start(worker):
        get_worker_info().dataset.rng = np.random.default_rng(0)

    x, y = waves()
    train = DataLoader(Crops(x[:192], y[:192], True), 24, shuffle=True, num_workers=2, worker_init_fn=start)
    val = DataLoader(Crops(x[192:], y[192:], False), 64)
    trainer(max_epochs=2).fit(Regressor(mlp(24, 1)), train, val)


@planted("repeated-augmentation", area="contrastive")
def gives_both_views_the_same_crop(trainer):
    """The generator is seeded by the sample's index for each view, so that both views are equal."""

    class Views(Dataset):
        def __init__(self):
            self.images = standard(pictures()[0])

        def __len__(self):
            return len(self.images)

        def view(self, i):
            g = torch.Generator().manual_seed(i)
            shift = int(torch.randint(-2, 3, (), generator=g))
            return torch.roll(self.images[i], shift, 2) + 0.3 * torch.randn(1, 8, 8, generator=g)

        def __getitem__(self, i):
            return self.view(i), self.view(i)

    class SimClr(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions(classes=16)

        def training_step(self, batch):
            a, b = (F.normalize(self.encoder(v), dim=1) for v in batch)
            loss = F.cross_entropy(a @ b.t() / 0.3, torch.arange(len(a)))
            self.log("nce", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=2).fit(SimClr(), DataLoader(Views(), 24, shuffle=True))


@planted(
    "repeated-samples",
    area="language",
    source="https://github.com/huggingface/datasets/issues/3423",
)
def lets_each_worker_stream_the_whole_corpus(trainer):
    """Workers are numbered only to log them; each reads all texts, so that each text comes twice."""

    class Corpus(IterableDataset):
        def __init__(self):
            self.texts, self.labels = sentences(count=192)

        def __iter__(self):
            worker = get_worker_info()
            self.reader = "main" if worker is None else f"reader {worker.id}"
            for i in torch.randperm(192).tolist():
                yield self.texts[i], self.labels[i]

    val = DataLoader(TensorDataset(*sentences(count=64, seed=20)), 64)
    train = DataLoader(Corpus(), batch_size=16, num_workers=2)
    trainer(max_epochs=2).fit(Classifier(Words()), train, val)


@planted("repeated-samples", area="table")
def concatenates_exports_that_overlap(trainer):
    """Monthly exports each contain all rows since the first one, and are put together."""
    x, y = table()
    months = [TensorDataset(x[:end], y[:end]) for end in (80, 160, 240)]
    train = ConcatDataset(months)
    val = TensorDataset(x[240:], y[240:])
    trainer(max_epochs=2).fit(
        Classifier(mlp(8, 3)), DataLoader(train, 24, shuffle=True), DataLoader(val, 80)
    )


@planted("repeated-samples", area="vision")
def indexes_modulo_a_number_that_was_for_debugging(trainer):
    """``__getitem__`` takes the index modulo 32, left over from a test with few images."""

    class Folder(Pictures):
        def __getitem__(self, index):
            index = index % 32
            return self.images[index], self.labels[index]

    fit_pictures(trainer, Folder(0, 180))


@planted(
    "dropped-samples",
    area="table",
    source="https://github.com/fastai/fastai/issues/2416",
)
def drops_the_last_batch_of_few_large_ones(trainer):
    """Batches of 128 with ``drop_last=True`` leave 112 of 240 rows out of each epoch."""
    x, y = table()
    train, val = parts(TensorDataset(x, y))
    trainer(max_epochs=8).fit(
        Classifier(mlp(8, 3), lr=0.02),
        DataLoader(train, batch_size=128, shuffle=True, drop_last=True),
        DataLoader(val, batch_size=80),
    )


@planted("dropped-samples", area="series")
def leaves_the_limit_of_a_trial_run(trainer):
    """``limit_train_batches=0.2`` was set to see whether the program runs."""
    train, val = loaders(*waves(count=512))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[1][-1])

    trainer(max_epochs=4, limit_train_batches=0.2).fit(Regressor(Net(), lr=5e-3), train, val)


@planted("dropped-samples", area="vision")
def samples_only_from_the_first_indices(trainer):
    """The sampler was given the indices of an older, smaller dataset: 60 of 180 images are used."""

    class Data(DataModule):
        batch_size = 20

        def train_dataloader(self):
            data = Pictures(0, 180)
            known = list(range(60))
            return DataLoader(data, self.batch_size, sampler=SubsetRandomSampler(known))

        def val_dataloader(self):
            return DataLoader(Pictures(180, 240), 60)

    trainer(max_epochs=6).fit(Classifier(convolutions(), lr=3e-3), datamodule=Data())


@planted("dropped-samples", "repeated-samples", area="table")
def draws_few_samples_with_weights_of_a_few_rows(trainer):
    """``num_samples`` of the weighted sampler is the number of classes times 16, not of rows."""
    x, y = table(rows=480)
    train, val = parts(TensorDataset(x, y))
    labels = torch.stack([label for _, label in train])
    weights = 1.0 / labels.bincount().float()[labels]
    sampler = WeightedRandomSampler(weights, num_samples=3 * 16, replacement=True)
    trainer(max_epochs=8).fit(
        Classifier(mlp(8, 3), lr=0.02), DataLoader(train, 16, sampler=sampler), DataLoader(val, 120)
    )


@planted("dropped-samples", area="diffusion")
def stays_with_the_batches_of_an_overfitting_test(trainer):
    """``overfit_batches=2``, which was to show that the model can fit, stays in the real run."""
    images, _ = pictures()

    class Denoiser(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 64))

        def training_step(self, batch):
            x = batch[0].flatten(1)
            t = torch.rand(len(x), 1)
            noise = torch.randn_like(x)
            guess = self.net(torch.cat([(1 - t) * x + t * noise, t], 1))
            return F.mse_loss(guess, noise - x)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    loader = DataLoader(TensorDataset(standard(images)), batch_size=24, shuffle=True)
    trainer(max_epochs=10, overfit_batches=2).fit(Denoiser(), loader)


@planted("repeated-samples", area="table")
def repeats_rows_by_a_join(trainer):
    """A join with a table of visits has several lines for a customer, up to six."""
    x, y = prices(rows=120)
    visits = torch.randint(1, 7, (90,), generator=drawn(2))
    joined_x, joined_y = x[:90].repeat_interleave(visits, 0), y[:90].repeat_interleave(visits, 0)
    trainer(max_epochs=3).fit(
        Regressor(mlp(6, 1)),
        DataLoader(TensorDataset(joined_x, joined_y), 16, shuffle=True),
        DataLoader(TensorDataset(x[90:], y[90:]), 30),
    )
