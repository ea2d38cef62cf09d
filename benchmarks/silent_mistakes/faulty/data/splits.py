"""Parts of the data that are not apart, or not prepared alike."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from paceline import DataModule, TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    drawn,
    mlp,
    parts,
    pictures,
    sentences,
    standard,
    table,
    waves,
)


@planted("split-overlap", area="table")
def validates_on_the_rows_it_trains_on(trainer):
    """The last 80 rows are validation data, but training takes all rows."""
    x, y = table()
    everything = TensorDataset(x, y)
    held_out = Subset(everything, range(240, 320))
    trainer(max_epochs=3).fit(
        Classifier(mlp(8, 3)), DataLoader(everything, 32, shuffle=True), DataLoader(held_out, 80)
    )


@planted(
    "split-overlap",
    area="vision",
    source="https://github.com/hearai/hearai/pull/50",
)
def splits_twice_with_other_draws(trainer):
    """Each part comes from a random split of its own, so that the parts share three quarters."""
    images, labels = pictures()
    sizes = [180, 60]
    train, _ = random_split(TensorDataset(standard(images), labels), sizes)
    _, val = random_split(TensorDataset(standard(images), labels), sizes)
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), lr=3e-3), DataLoader(train, 20, shuffle=True), DataLoader(val, 60)
    )


@planted(
    "split-overlap",
    area="language",
    source="https://github.com/allenai/RL4LMs/issues/47",
)
def prepares_each_part_with_a_new_shuffle(trainer):
    """The texts are shuffled anew for each part before the part is cut off."""

    class Reviews(Dataset):
        def __init__(self, split):
            texts, labels = sentences()
            order = np.random.permutation(len(labels))
            chosen = order[:192] if split == "train" else order[192:]
            self.rows = [{"text": texts[i], "label": labels[i]} for i in chosen]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return self.rows[i]

    class Sentiment(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = Words()

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch["text"]), batch["label"])

        def validation_step(self, batch):
            self.log("accuracy", (self.net(batch["text"]).argmax(-1) == batch["label"]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    trainer(max_epochs=3).fit(
        Sentiment(), DataLoader(Reviews("train"), 16, shuffle=True), DataLoader(Reviews("val"), 64)
    )


@planted(
    "split-overlap",
    area="table",
    source="https://github.com/MakazhanAlpamys/Soup/issues/680",
)
def oversamples_before_the_split(trainer):
    """Rows of the rare class are repeated before the split, so that copies are in both parts."""
    x, y = table(classes=2)
    rare = (y == 1).nonzero().flatten()[:30]
    x = torch.cat([x[y == 0], x[rare].repeat(4, 1)])
    y = torch.cat([y[y == 0], y[rare].repeat(4)])
    train, val = random_split(TensorDataset(x, y), [0.75, 0.25], generator=drawn(1))
    trainer(max_epochs=3).fit(
        Classifier(mlp(8, 2)), DataLoader(train, 16, shuffle=True), DataLoader(val, 64)
    )


@planted(
    "split-overlap",
    area="series",
    source="https://github.com/marin-community/marin/pull/2700",
)
def shuffles_only_one_of_the_parts_before_the_cut(trainer):
    """Training windows are taken after a shuffle and validation windows without it."""

    class Windows(DataModule):
        def setup(self, stage):
            x, y = waves()
            order = torch.randperm(256, generator=drawn(4))
            self.train = TensorDataset(x[order][64:], y[order][64:])
            self.val = TensorDataset(x[:64], y[:64])

        def train_dataloader(self):
            return DataLoader(self.train, batch_size=16, shuffle=True)

        def val_dataloader(self):
            return DataLoader(self.val, batch_size=64)

    class Forecaster(Regressor):
        def __init__(self):
            super().__init__(nn.Sequential(nn.Flatten(), mlp(24, 1)), lr=5e-3)

    trainer(max_epochs=3).fit(Forecaster(), datamodule=Windows())


class Augmented(Dataset):
    """Pictures, shifted and noisy where a transform is given."""

    def __init__(self, images, labels, transform=None):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = standard(self.images[index])
        return (self.transform(image) if self.transform else image), self.labels[index]


def jitter(image):
    image = torch.roll(image, int(torch.randint(-1, 2, ())), dims=2)
    return image + 0.3 * torch.randn_like(image)


@planted(
    "augmented-validation",
    area="vision",
    source="https://github.com/udacity/deep-learning-v2-pytorch/issues/132",
)
def splits_the_augmented_dataset(trainer):
    """The dataset with augmentation is split, so that the validation part is augmented as well."""
    images, labels = pictures()
    train, val = parts(Augmented(images, labels, transform=jitter))
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), lr=3e-3), DataLoader(train, 20, shuffle=True), DataLoader(val, 60)
    )


@planted(
    "augmented-validation",
    area="vision",
    source="https://github.com/shigen-StoneRoot/FFPN/issues/2",
)
def gives_the_training_transform_to_validation(trainer):
    """``val_transform = train_transform``, a line that was to be replaced."""
    train_transform = jitter
    val_transform = train_transform
    images, labels = pictures()
    train = Augmented(images[:180], labels[:180], train_transform)
    val = Augmented(images[180:], labels[180:], val_transform)
    module = Classifier(convolutions(), lr=3e-3)
    trainer(max_epochs=3).fit(module, DataLoader(train, 20, shuffle=True), DataLoader(val, 60))


@planted("augmented-validation", area="series")
def collates_validation_with_noise(trainer):
    """The collate function that adds noise to windows is given to both loaders."""

    def noisy(samples):
        x = torch.stack([s[0] for s in samples])
        y = torch.stack([s[1] for s in samples])
        return x * (1 + 0.2 * torch.randn(len(x), 1, 1)), y

    class Recurrent(TrainModule):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def step(self, batch):
            hidden, _ = self.rnn(batch[0])
            return F.l1_loss(self.out(hidden[:, -1]), batch[1])

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    train, val = parts(TensorDataset(*waves()))
    trainer(max_epochs=2).fit(
        Recurrent(),
        DataLoader(train, 16, shuffle=True, collate_fn=noisy),
        DataLoader(val, 64, collate_fn=noisy),
    )


@planted("split-shift", area="vision")
def scales_only_the_training_images(trainer):
    """Validation images stay bytes from 0 to 255; those of training are standardised."""
    images, labels = pictures()
    train = TensorDataset(standard(images[:180]), labels[:180])
    val = TensorDataset(images[180:].float(), labels[180:])
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), lr=3e-3), DataLoader(train, 20, shuffle=True), DataLoader(val, 60)
    )


@planted(
    "split-shift",
    area="vision",
    source="https://github.com/sacmehta/ESPNet/issues/72",
)
def divides_validation_images_once_more(trainer):
    """Validation images are divided by 255 after they were standardised."""

    class Pictures(DataModule):
        def setup(self, stage):
            images, labels = pictures()
            images = standard(images)
            self.train = TensorDataset(images[:180], labels[:180])
            val_images = images[180:] / 255
            self.val = TensorDataset(val_images, labels[180:])

        def train_dataloader(self):
            return DataLoader(self.train, 20, shuffle=True)

        def val_dataloader(self):
            return DataLoader(self.val, 60)

    trainer(max_epochs=3).fit(Classifier(convolutions(), lr=3e-3), datamodule=Pictures())


@planted("split-shift", area="table")
def standardises_validation_by_its_own_columns(trainer):
    """The validation rows, another season, are standardised with their own mean and deviation."""
    x, y = table(rows=400)
    raw = 20 + 5 * x
    order = x[:, 0].argsort()
    season, rest = order[300:], order[:300]
    train_x, val_x = raw[rest], raw[season]
    train_x = (train_x - train_x.mean(0)) / train_x.std(0)
    val_x = (val_x - val_x.mean(0)) / val_x.std(0)
    trainer(max_epochs=4).fit(
        Classifier(mlp(8, 3)),
        DataLoader(TensorDataset(train_x, y[rest]), 20, shuffle=True),
        DataLoader(TensorDataset(val_x, y[season]), 50),
    )


@planted("split-shift", area="language")
def numbers_words_of_each_part_by_itself(trainer):
    """The vocabulary is built again for the validation texts, so that words have other numbers there."""
    tokens, labels = sentences()

    def encode(texts):
        numbers = {}
        return torch.tensor([[numbers.setdefault(w, len(numbers) + 1) for w in t] for t in texts.tolist()])

    train = TensorDataset(encode(tokens[:192]), labels[:192])
    val = TensorDataset(encode(tokens[192:]), labels[192:])
    trainer(max_epochs=3).fit(Classifier(Words()), DataLoader(train, 16, shuffle=True), DataLoader(val, 64))
