"""Overrides what the loop does for one: backward, the step, zeroing, clipping, the schedule's step."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader(size=40):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(size, 5, generator=generator)
    return DataLoader(TensorDataset(x, torch.tanh(x.sum(1, keepdim=True))), batch_size=5)


class CustomOptimization(L.LightningModule):
    def __init__(self, lr: float = 0.05, warmup_steps: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Linear(10, 1))
        self.backwards = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.huber_loss(self.layer(x), y)
        self.log("loss", loss, prog_bar=True, logger=True)
        return loss

    def backward(self, loss):
        self.backwards += 1
        loss.backward(retain_graph=False)

    # learning rate warm-up
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        # update params
        optimizer.step(closure=optimizer_closure)

        # manually warm up lr without a scheduler
        if self.trainer.global_step < self.hparams.warmup_steps:
            lr_scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup_steps)
            for pg in optimizer.param_groups:
                pg["lr"] = lr_scale * self.hparams.lr

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=True)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        # tighter from the second epoch on
        if self.current_epoch == 0:
            self.clip_gradients(
                optimizer,
                gradient_clip_val=gradient_clip_val,
                gradient_clip_algorithm=gradient_clip_algorithm,
            )
        else:
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val / 2)

    def lr_scheduler_step(self, scheduler, metric):
        if self.current_epoch > 0:
            scheduler.step()

    def on_train_epoch_end(self):
        self.log("backwards", float(self.backwards))
        self.log("lr_now", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr / self.hparams.warmup_steps)
        scheduler = {
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
            "interval": "step",
            "frequency": 2,
        }
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)
    model = CustomOptimization()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        gradient_clip_val=0.05,
        gradient_clip_algorithm="value",
        log_every_n_steps=1,
        enable_checkpointing=False,
        logger=False,
        **trainer_options,
    )
    trainer.fit(model, make_loader())
    return trainer, model
