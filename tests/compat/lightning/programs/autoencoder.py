"""Lightning's README: an autoencoder of two small networks, one optimizer."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Something like handwritten digits: blurred blobs on 8 x 8 points."""

    def __init__(self, size=64):
        generator = torch.Generator().manual_seed(11)
        centres = torch.rand(size, 2, generator=generator) * 7
        grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1)
        distance = (grid[None] - centres[:, None, None]).square().sum(-1)
        self.images = torch.exp(-distance / 4)[:, None]
        self.labels = (centres[:, 0] > 3.5).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


# --------------------------------
# Step 1: Define a LightningModule
# --------------------------------
class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8 * 8, 32), nn.ReLU(), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 8 * 8))

    def forward(self, x):
        # in lightning, forward defines the prediction/inference actions
        embedding = self.encoder(x)
        return embedding

    def training_step(self, batch, batch_idx):
        # training_step defines the train loop. It is independent of forward
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = F.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return optimizer


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)

    # -------------------
    # Step 2: Define data
    # -------------------
    train = DataLoader(Digits(), batch_size=8)

    # -------------------
    # Step 3: Train
    # -------------------
    autoencoder = LitAutoEncoder()
    trainer = L.Trainer(max_epochs=max_epochs, log_every_n_steps=1, **trainer_options)
    trainer.fit(autoencoder, train)

    embeddings = autoencoder(torch.zeros(2, 64))
    assert embeddings.shape == (2, 3)
    return trainer, autoencoder
