"""Knowledge distillation: a teacher that is trained first, then frozen inside the student's module."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.model_summary import ModelSummary
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(size, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (size,), generator=generator)
    x = 0.5 * torch.randn(size, 8, generator=generator)
    x[torch.arange(size), y] += 2
    return DataLoader(TensorDataset(x, y), batch_size=10, shuffle=False)


class Teacher(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Student(pl.LightningModule):
    def __init__(self, teacher: pl.LightningModule, temperature: float = 3.0, alpha: float = 0.7):
        super().__init__()
        self.save_hyperparameters(ignore="teacher")
        self.teacher = teacher
        self.teacher.freeze()
        self.student = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))

    def on_train_epoch_start(self):
        self.teacher.eval()  # Lightning puts the whole module into training mode

    def forward(self, x):
        return self.student(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        with torch.no_grad():
            wanted = self.teacher(x)
        t = self.hparams.temperature
        soft = F.kl_div(
            F.log_softmax(logits / t, -1),
            F.log_softmax(wanted / t, -1),
            log_target=True,
            reduction="batchmean",
        )
        hard = F.cross_entropy(logits, y)
        loss = self.hparams.alpha * t * t * soft + (1 - self.hparams.alpha) * hard
        self.log_dict({"soft": soft, "hard": hard, "loss": loss}, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        parameters = filter(lambda p: p.requires_grad, self.parameters())
        return torch.optim.SGD(parameters, lr=0.1, nesterov=True, momentum=0.9)


def main(max_epochs=2, **trainer_options):
    pl.seed_everything(7)
    teacher = Teacher()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=max_epochs, log_every_n_steps=1, **quiet, **trainer_options).fit(
        teacher, digits(60, 0)
    )

    pl.seed_everything(8)
    model = Student(teacher)
    assert ModelSummary(model).trainable_parameters == sum(p.numel() for p in model.student.parameters())
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    trainer = pl.Trainer(max_epochs=max_epochs, log_every_n_steps=1, **trainer_options)
    trainer.fit(model, digits(60, 0), digits(20, 1))
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    return trainer, model
