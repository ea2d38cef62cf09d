"""Manual optimization in full: dicts of optimizers and schedules, accumulation, clipping and a closure."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ActorCritic(L.LightningModule):
    def __init__(self, accumulate: int = 2):
        super().__init__()
        self.automatic_optimization = False
        self.accumulate = accumulate
        self.encoder = nn.Linear(6, 10)
        self.actor = nn.Linear(10, 6)
        self.critic = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))

    def training_step(self, batch, batch_idx):
        opt_actor, opt_critic = self.optimizers()
        x, y = batch

        # the actor: gradients of several batches, clipped
        with opt_actor.toggle_model(sync_grad=(batch_idx + 1) % self.accumulate == 0):
            loss = nn.functional.mse_loss(self.actor(torch.relu(self.encoder(x))), x)
            self.manual_backward(loss / self.accumulate)
        if (batch_idx + 1) % self.accumulate == 0:
            self.clip_gradients(opt_actor, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            opt_actor.step()
            opt_actor.zero_grad()
            sch_actor, _ = self.lr_schedulers()
            sch_actor.step()

        # the critic: by a closure
        def closure():
            critic_loss = nn.functional.mse_loss(self.critic(x), y)
            opt_critic.zero_grad()
            self.manual_backward(critic_loss)
            self.log("critic_loss", critic_loss)
            return critic_loss

        opt_critic.step(closure=closure)
        self.log("actor_loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss.detach(), "rows": len(x)}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("rows", float(outputs["rows"]), reduce_fx="sum")

    def on_train_epoch_end(self):
        _, sch_critic = self.lr_schedulers()
        if isinstance(sch_critic, torch.optim.lr_scheduler.ReduceLROnPlateau):
            sch_critic.step(self.trainer.callback_metrics["val_loss"])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.critic(x), y))

    def configure_optimizers(self):
        actor = torch.optim.Adam([*self.encoder.parameters(), *self.actor.parameters()], lr=0.01)
        critic = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(critic, patience=0, factor=0.3, threshold=0.5)
        return (
            {
                "optimizer": actor,
                "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ExponentialLR(actor, 0.9)},
            },
            {"optimizer": critic, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}},
        )


def main(max_epochs=3, **trainer_options):
    L.seed_everything(7)
    generator = torch.Generator().manual_seed(15)
    x = torch.randn(48, 6, generator=generator)
    data = TensorDataset(x, x.abs().amax(1, keepdim=True))
    model = ActorCritic()
    trainer = L.Trainer(max_epochs=max_epochs, log_every_n_steps=1, **trainer_options)
    trainer.fit(model, DataLoader(data, batch_size=6), DataLoader(data, batch_size=16))
    if trainer.world_size == 1:
        assert trainer.global_step == 12 * max_epochs
    return trainer, model
