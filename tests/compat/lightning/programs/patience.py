"""Early stopping that the model brings along, no earlier than min_epochs; validation every other epoch."""

import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class StopsByItself(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.criterion = nn.BCEWithLogitsLoss()

    def configure_callbacks(self):
        early_stop = EarlyStopping(monitor="val_acc", mode="max", patience=1, min_delta=0.5)
        checkpoint = ModelCheckpoint(monitor="val_loss", save_on_train_epoch_end=False)
        return [early_stop, checkpoint]

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        values = {
            "val_loss": self.criterion(logits, y),
            "val_acc": ((logits > 0) == (y > 0)).float().mean(),
        }
        self.log_dict(values, prog_bar=True)

    def on_validation_end(self):
        self.print(f"epoch {self.current_epoch}: {float(self.trainer.callback_metrics['val_acc']):.3f}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}


def main(max_epochs=20, **trainer_options):
    seed_everything(7)
    generator = torch.Generator().manual_seed(10)
    x = torch.randn(40, 3, generator=generator)
    data = TensorDataset(x, (x[:, :1] > x[:, 1:2]).float())
    model = StopsByItself()
    trainer = Trainer(
        min_epochs=7,
        max_epochs=max_epochs,
        check_val_every_n_epoch=2,
        log_every_n_steps=1,
        **trainer_options,
    )
    trainer.fit(model, DataLoader(data, batch_size=8), DataLoader(data, batch_size=20))
    assert trainer.should_stop
    assert 7 <= trainer.current_epoch < 20
    assert trainer.early_stopping_callback.stopped_epoch > 0
    return trainer, model
