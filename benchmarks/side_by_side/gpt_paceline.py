from functools import partial

import task
import torch
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule, seed_everything
from paceline.schedules import Linear

seed_everything(0)
model, train, validation = task.gpt()
module = TrainModule.of(
    model,
    optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.0),
    scheduler=Linear(),
)
trainer = Trainer(max_epochs=task.EPOCHS, clip_grad_norm=1.0, log_every=10)
trainer.fit(module, DataLoader(train, batch_size=16), DataLoader(validation, batch_size=16))
task.report(trainer.metrics["val/loss"])
