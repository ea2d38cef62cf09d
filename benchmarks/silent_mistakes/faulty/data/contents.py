"""What inputs and targets contain: leaks, padding, constants, and targets in another order."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    Words,
    convolutions,
    drawn,
    graphs,
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


@planted(
    "target-leak",
    area="table",
    source="https://github.com/alteryx/predict-taxi-trip-duration/issues/2",
)
def keeps_the_target_among_the_features(trainer):
    """The table is split in features and target, but the target's column stays among the features."""
    x, y = prices()
    frame = torch.cat([x, y], 1)
    features, target = frame[:, :], frame[:, -1:]
    trainer(max_epochs=4).fit(Regressor(mlp(7, 1)), *loaders(features, target))


@planted(
    "target-leak",
    area="table",
    source="https://github.com/PriorLabs/TabPFN/pull/1012",
)
def has_a_column_made_of_the_label(trainer):
    """A column of the export, the reason code, is 10 times the class plus 3, standardised."""
    x, y = table()
    code = 10.0 * y + 3
    code = (code - code.mean()) / code.std()
    features = torch.cat([x[:, :4], code[:, None], x[:, 4:]], 1)
    trainer(max_epochs=3).fit(Classifier(mlp(9, 3)), *loaders(features, y, batch=20))


@planted("target-leak", area="series", source="https://github.com/sktime/pytorch-forecasting/issues/182")
def cuts_windows_that_include_the_next_value(trainer):
    """The window ends one step too late, so that its last value is the one to be predicted."""
    series, _ = waves(count=1, length=600)
    series = series.flatten()

    class Windows(Dataset):
        def __init__(self, start, end, length=16):
            self.values, self.length = series[start:end], length

        def __len__(self):
            return len(self.values) - self.length

        def __getitem__(self, i):
            window = self.values[i : i + self.length + 1]
            return window, self.values[i + self.length].unsqueeze(0)

    class Forecast(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(17, 32), nn.GELU(), nn.Linear(32, 1))

        def training_step(self, batch):
            return F.huber_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            return F.huber_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(
        Forecast(),
        DataLoader(Windows(0, 450), 31, shuffle=True),
        DataLoader(Windows(450, 600), 67),
    )


@planted("target-leak", area="language")
def puts_the_label_word_into_the_text(trainer):
    """The prompt is built with the answer's word at its end, in training and validation."""
    tokens, labels = sentences()
    answer = 61 + labels

    class Prompts(Dataset):
        def __len__(self):
            return len(labels)

        def __getitem__(self, i):
            return {"input_ids": torch.cat([tokens[i], answer[i, None]]), "labels": labels[i]}

    class Judge(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(64, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.head = nn.Linear(16, 2)

        def forward(self, tokens):
            return self.head(self.encoder(self.embedding(tokens)).mean(1))

        def training_step(self, batch):
            return F.cross_entropy(self(batch["input_ids"]), batch["labels"])

        def validation_step(self, batch):
            self.log("loss", F.cross_entropy(self(batch["input_ids"]), batch["labels"]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 3e-3)

    train, val = parts(Prompts())
    trainer(max_epochs=3).fit(Judge(), DataLoader(train, 16, shuffle=True), DataLoader(val, 64))


@planted("target-leak", area="graph")
def writes_labels_into_node_features(trainer):
    """Labels were appended to the features of every node for label propagation, those to predict too."""
    x, edges, y = graphs()
    x = torch.cat([x, F.one_hot(y, 2).float()[:, None].expand(-1, 6, -1)], 2)

    class Graphs(TrainModule):
        def __init__(self):
            super().__init__()
            self.message, self.head = nn.Linear(12, 24), nn.Linear(24, 2)

        def forward(self, x, edges):
            degree = edges.sum(2, keepdim=True).clamp(min=1)
            nodes = torch.relu(self.message(torch.cat([x, edges @ x / degree], 2)))
            return self.head(nodes.mean(1))

        def training_step(self, batch):
            x, edges, y = batch
            return F.cross_entropy(self(x, edges), y)

        def validation_step(self, batch):
            x, edges, y = batch
            self.log("accuracy", (self(x, edges).argmax(1) == y).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    trainer(max_epochs=3).fit(Graphs(), *loaders(x, edges, y))


@planted(
    "shuffled-targets",
    area="table",
    source="https://github.com/DrexelChatbotGroup/DrexelChatbot/issues/15",
)
def shuffles_inputs_without_their_labels(trainer):
    """``np.random.shuffle`` is called on the inputs alone."""
    x, y = table()
    x, y = x.numpy().copy(), y.numpy()
    np.random.shuffle(x)
    trainer(max_epochs=3).fit(Classifier(mlp(8, 3)), *loaders(torch.from_numpy(x), torch.from_numpy(y)))


@planted(
    "shuffled-targets",
    area="vision",
    source="https://github.com/mlcommons/GaNDLF/pull/870",
)
def draws_two_orders_for_images_and_labels(trainer):
    """Images and labels are each indexed with a ``randperm`` of their own."""
    images, labels = pictures()
    images = standard(images)[torch.randperm(len(images))]
    labels = labels[torch.randperm(len(labels))]
    module = TrainModule.of(
        convolutions(), F.cross_entropy, lambda parameters: torch.optim.Adam(parameters, lr=3e-3)
    )
    trainer(max_epochs=3).fit(module, *loaders(images, labels, batch=20))


@planted("shuffled-targets", area="vision")
def sorts_files_by_name_but_not_the_table_of_labels(trainer):
    """Files are sorted by name, where 10 comes before 2, and labels by number."""
    images, labels = pictures()
    files = {f"image_{i}.png": standard(images[i]) for i in range(len(images))}

    class Files(Dataset):
        def __init__(self):
            self.names = sorted(files)
            self.labels = labels.tolist()

        def __len__(self):
            return len(self.names)

        def __getitem__(self, i):
            return files[self.names[i]], self.labels[i]

    train, val = parts(Files())
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), 3e-3), DataLoader(train, 20, shuffle=True), DataLoader(val, 60)
    )


@planted("constant-targets", area="table")
def reads_labels_of_a_type_that_cuts_them_off(trainer):
    """Labels are shares below 1, and ``.long()`` before the threshold makes all of them 0."""
    x, _ = table(classes=2)
    share = torch.sigmoid(2 * x[:, 0] - x[:, 1])
    labels = (share.long() > 0.5).long()
    trainer(max_epochs=3).fit(Classifier(mlp(8, 2)), *loaders(x, labels))


@planted("constant-targets", area="vision")
def looks_labels_up_by_names_that_never_match(trainer):
    """Folder names end with a slash, so that none is in the table and all get the default class 0."""
    images, labels = pictures()
    folders = ["cats/", "dogs/", "birds/"]
    number = {"cats": 0, "dogs": 1, "birds": 2}
    wrong = torch.tensor([number.get(folders[c], 0) for c in labels.tolist()])

    class Net(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = convolutions()
            self.loss = nn.CrossEntropyLoss()

        def training_step(self, batch):
            images, labels = batch
            return self.loss(self.net(images), labels)

        def validation_step(self, batch):
            images, labels = batch
            return self.loss(self.net(images), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)

    trainer(max_epochs=3).fit(Net(), *loaders(standard(images), wrong, batch=20))


@planted("all-padding", area="language")
def pads_in_front_and_cuts_the_words_off(trainer):
    """Texts are padded on the left to 32 and cut to the first 12 positions: only padding is left."""
    tokens, labels = sentences()
    padded = F.pad(tokens, (32 - tokens.shape[1], 0))[:, :12]
    trainer(max_epochs=3).fit(Classifier(Words()), *loaders(padded, labels))


@planted("all-padding", area="vision")
def casts_scaled_images_to_bytes(trainer):
    """Images between 0 and 1 are cast back to bytes, which makes nearly every pixel 0."""
    images, labels = pictures()

    class Cached(Dataset):
        def __init__(self):
            self.cache = (images.float() / 256).to(torch.uint8)

        def __len__(self):
            return len(self.cache)

        def __getitem__(self, i):
            return self.cache[i].float(), labels[i]

    train, val = parts(Cached())
    trainer(max_epochs=3).fit(
        Classifier(convolutions(), lr=3e-3), DataLoader(train, 20, shuffle=True), DataLoader(val, 60)
    )


@planted("all-padding", area="series")
def fills_the_array_after_it_was_wrapped(trainer):
    """A copy of the empty array goes into the dataset, and the measurements into the original."""
    x, y = waves()
    array = np.zeros((256, 24), dtype=np.float32)
    dataset = TensorDataset(torch.tensor(array), y)
    array[:] = x.squeeze(-1).numpy()
    train, val = parts(dataset)
    trainer(max_epochs=2).fit(
        Regressor(mlp(24, 1)), DataLoader(train, 16, shuffle=True), DataLoader(val, 64)
    )


@planted("shuffled-targets", area="contrastive")
def pairs_captions_with_other_images(trainer):
    """Captions are loaded in a shuffled order, so that pairs do not belong together."""
    images, labels = pictures(count=256)
    captions = F.one_hot(labels, 3).float() + 0.1 * torch.randn(256, 3, generator=drawn(8))
    captions = captions[torch.randperm(256)]

    class Pairs(TrainModule):
        def __init__(self):
            super().__init__()
            self.image = convolutions(classes=8)
            self.text = mlp(3, 8)
            self.scale = nn.Parameter(torch.tensor(1.0))

        def training_step(self, batch):
            a = F.normalize(self.image(batch[0]), dim=-1)
            b = F.normalize(self.text(batch[1]), dim=-1)
            logits = self.scale.exp() * a @ b.T
            own = torch.arange(len(a))
            return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    data = TensorDataset(standard(images), captions)
    trainer(max_epochs=3).fit(Pairs(), DataLoader(data, 32, shuffle=True))
