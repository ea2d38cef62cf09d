import task
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as loss
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule, seed_everything


class GAN(TrainModule):
    def __init__(self, generator, critic):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = generator, critic

    def training_step(self, batch):
        images, noise = batch
        ones, zeros = torch.ones(len(images), 1), torch.zeros(len(images), 1)
        of_generator, of_critic = self.optimizers()

        generator_loss = loss(self.critic(self.generator(noise)), ones)
        of_generator.zero_grad()
        self.manual_backward(generator_loss)
        of_generator.step()

        made = self.generator(noise).detach()
        critic_loss = (loss(self.critic(images), ones) + loss(self.critic(made), zeros)) / 2
        of_critic.zero_grad()
        self.manual_backward(critic_loss)
        of_critic.step()
        return {"loss": generator_loss + critic_loss, "generator": generator_loss, "critic": critic_loss}

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=2e-4) for part in (self.generator, self.critic)]


seed_everything(0)
generator, critic, images = task.gan()
module = GAN(generator, critic)
Trainer(max_epochs=10 * task.EPOCHS, log_every=10).fit(module, DataLoader(images, batch_size=32))
task.report(generator(images[0][1]).abs().mean())
