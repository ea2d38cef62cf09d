"""Inputs whose scale is off: not normalised, or normalised twice."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import TrainModule

from ...programs import planted
from ...tasks_data import (
    Classifier,
    Regressor,
    convolutions,
    drawn,
    loaders,
    mlp,
    parts,
    pictures,
    prices,
    standard,
    table,
    waves,
)


@planted(
    "unscaled-inputs",
    area="vision",
    source="https://github.com/hill-a/stable-baselines/issues/328",
)
def trains_on_bytes_as_floats(trainer):
    """Images are converted with ``float()`` and never divided by 255."""
    images, labels = pictures()
    train, val = loaders(images.float(), labels, batch=20)
    trainer(max_epochs=3).fit(Classifier(convolutions(), lr=3e-3), train, val)


@planted(
    "unscaled-inputs",
    area="vision",
    source="https://github.com/kenshohara/video-classification-3d-cnn-pytorch/issues/54",
)
def transposes_arrays_without_scaling(trainer):
    """The own ``__getitem__`` makes tensors of arrays of bytes, without what ``ToTensor`` divides by."""

    class Folder(Dataset):
        def __init__(self):
            images, labels = pictures()
            self.arrays = images.permute(0, 2, 3, 1).numpy()
            self.labels = labels.tolist()

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, i):
            return torch.tensor(self.arrays[i].transpose(2, 0, 1), dtype=torch.float32), self.labels[i]

    train, val = parts(Folder())
    module = TrainModule.of(
        convolutions(), nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
    )
    trainer(max_epochs=3).fit(module, DataLoader(train, 20, shuffle=True), DataLoader(val, 60))


@planted("unscaled-inputs", area="gan")
def shows_the_discriminator_bytes(trainer):
    """Real images are bytes from 0 to 255 while the generator ends with tanh."""
    images, _ = pictures()

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
            self.discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

        def training_step(self, batch):
            real = batch[0].flatten(1)
            for_g, for_d = self.optimizers()
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = self.generator(torch.randn(len(real), 8))

            self.toggle_optimizer(for_d)
            loss_d = F.binary_cross_entropy_with_logits(self.discriminator(real), ones)
            loss_d = loss_d + F.binary_cross_entropy_with_logits(self.discriminator(fake.detach()), zeros)
            for_d.zero_grad()
            self.manual_backward(loss_d)
            for_d.step()
            self.untoggle_optimizer(for_d)

            self.toggle_optimizer(for_g)
            loss_g = F.binary_cross_entropy_with_logits(self.discriminator(fake), ones)
            for_g.zero_grad()
            self.manual_backward(loss_g)
            for_g.step()
            self.untoggle_optimizer(for_g)
            self.log_dict({"loss_d": loss_d, "loss_g": loss_g})

        def configure_optimizers(self):
            return [
                torch.optim.Adam(self.generator.parameters(), 2e-3),
                torch.optim.Adam(self.discriminator.parameters(), 2e-3),
            ]

    data = TensorDataset(images.float())
    trainer(max_epochs=2).fit(Gan(), DataLoader(data, 20, shuffle=True))


@planted("unscaled-inputs", area="table")
def leaves_columns_in_their_units(trainer):
    """Columns are years, metres and euros: from 0.001 to 100000."""
    x, y = table(columns=6)
    raw = x * torch.tensor([10.0, 1e-3, 3e4, 1.0, 200.0, 5.0]) + torch.tensor([2010, 0, 1e5, 3, 900, 40])
    train, val = loaders(raw, y)
    trainer(max_epochs=3).fit(Classifier(mlp(6, 3)), train, val)


@planted("unscaled-inputs", area="series")
def feeds_a_recurrent_net_with_raw_prices(trainer):
    """Prices of about 5000 go into an LSTM as they are; only the target is scaled."""
    x, y = waves()
    raw = 5000 + 400 * x

    class Prices(TrainModule):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 16, batch_first=True)
            self.head = nn.Linear(16, 1)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

        def training_step(self, batch, batch_idx):
            loss = F.mse_loss(self(batch[0]), batch[1])
            self.log("mse", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("mse", F.mse_loss(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer(max_epochs=2).fit(Prices(), *loaders(raw, y))


MEAN, STD = 0.42, 0.25


@planted(
    "normalised-twice",
    area="vision",
    source="https://github.com/pkmital/pycadl/pull/5",
)
def divides_by_255_in_dataset_and_module(trainer):
    """The dataset divides by 255, and so does the module."""
    images, labels = pictures()

    class Digits(Classifier):
        def forward(self, x):
            return self.model(x / 255.0)

    train, val = loaders(images.float() / 255, labels, batch=20)
    trainer(max_epochs=3).fit(Digits(convolutions(), lr=3e-3), train, val)


@planted(
    "normalised-twice",
    area="transfer",
    source="https://github.com/tensorlayer/SRGAN/issues/102",
)
def normalises_in_transform_and_backbone(trainer):
    """Inputs are standardised by the transform, and again by the first layer of the backbone."""
    images, labels = pictures()

    class Normalize(nn.Module):
        def forward(self, x):
            return (x - MEAN) / STD

    backbone = nn.Sequential(Normalize(), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
    backbone.requires_grad_(False)

    class Probe(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone = backbone
            self.head = nn.Linear(512, 3)

        def training_step(self, batch):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def validation_step(self, batch):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.head.parameters(), lr=3e-3)

    class Transformed(Dataset):
        def __len__(self):
            return len(labels)

        def __getitem__(self, i):
            return (images[i] / 255 - MEAN) / STD, labels[i]

    train, val = parts(Transformed())
    trainer(max_epochs=3).fit(Probe(), DataLoader(train, 20, shuffle=True), DataLoader(val, 60))


@planted("normalised-twice", area="table")
def standardises_columns_that_are_standard(trainer):
    """Columns that are standard in the file are standardised again with the raw columns' numbers."""
    x, y = prices()
    mean = torch.tensor([40.0, 3.0, 120.0, 7.0, 0.5, 15.0])
    deviation = torch.tensor([12.0, 1.5, 40.0, 2.0, 0.2, 5.0])
    train, val = loaders((x - mean) / deviation, y)
    trainer(max_epochs=3).fit(Regressor(mlp(6, 1)), train, val)


@planted("unscaled-inputs", area="diffusion")
def adds_unit_noise_to_bytes(trainer):
    """Noise of deviation 1 is added to images that go from 0 to 255."""
    images, _ = pictures()

    class Diffusion(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 64))
            self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.2, 50), 0))

        def training_step(self, batch):
            x = batch[0].flatten(1)
            t = torch.randint(50, (len(x),))
            noise = torch.randn_like(x)
            kept = self.kept[t, None]
            noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
            return F.mse_loss(self.net(torch.cat([noisy, t[:, None] / 50], 1)), noise)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 2e-3)

    order = torch.randperm(240, generator=drawn(5))
    data = TensorDataset(images[order].float())
    trainer(max_epochs=3).fit(Diffusion(), DataLoader(data, 24, shuffle=True))


@planted("normalised-twice", area="contrastive")
def standardises_each_view_again(trainer):
    """The dataset standardises its images, and each view is standardised once more."""
    images, labels = pictures()

    def view(x):
        x = torch.roll(x, int(torch.randint(-1, 2, ())), dims=-1) + 0.1 * torch.randn_like(x)
        return (x - MEAN) / STD

    class Contrastive(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = convolutions(classes=16)

        def training_step(self, batch):
            a = F.normalize(self.encoder(view(batch[0])), dim=1)
            b = F.normalize(self.encoder(view(batch[0])), dim=1)
            return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    data = TensorDataset(standard(images), labels)
    trainer(max_epochs=2).fit(Contrastive(), DataLoader(data, 24, shuffle=True))
