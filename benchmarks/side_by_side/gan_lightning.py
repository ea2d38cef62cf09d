import lightning as L
import task
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.nn.functional import binary_cross_entropy_with_logits as loss
from torch.utils.data import DataLoader


class GAN(L.LightningModule):
    def __init__(self, generator, critic):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = generator, critic

    def training_step(self, batch):
        images, noise = batch
        ones, zeros = torch.ones(len(images), 1), torch.zeros(len(images), 1)
        of_generator, of_critic = self.optimizers()

        self.toggle_optimizer(of_generator)
        generator_loss = loss(self.critic(self.generator(noise)), ones)
        self.log("generator", generator_loss, prog_bar=True)
        of_generator.zero_grad()
        self.manual_backward(generator_loss)
        of_generator.step()
        self.untoggle_optimizer(of_generator)

        self.toggle_optimizer(of_critic)
        made = self.generator(noise).detach()
        critic_loss = (loss(self.critic(images), ones) + loss(self.critic(made), zeros)) / 2
        self.log("critic", critic_loss, prog_bar=True)
        of_critic.zero_grad()
        self.manual_backward(critic_loss)
        of_critic.step()
        self.untoggle_optimizer(of_critic)

    def configure_optimizers(self):
        parts = (self.generator, self.critic)
        return [torch.optim.Adam(part.parameters(), lr=2e-4) for part in parts], []


L.seed_everything(0)
generator, critic, images = task.gan()
module = GAN(generator, critic)
trainer = L.Trainer(
    accelerator="cpu", max_epochs=10 * task.EPOCHS, log_every_n_steps=10, logger=TensorBoardLogger(".")
)
trainer.fit(module, DataLoader(images, batch_size=32))
task.report(generator(images[0][1]).abs().mean())
