"""On each rank: a run that unfreezes a part and gives it a parameter group, whole or resumed after that."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback

X = torch.linspace(-1, 1, 96).reshape(24, 4)


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.body.requires_grad_(False)

    def training_step(self, batch):
        return self.head(torch.tanh(self.body(batch[0]))).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.head.parameters(), lr=0.05)


class Unfreeze(Callback):
    """In epoch 1, and in no other."""

    def on_train_epoch_start(self, trainer):
        if trainer.epoch == 1:
            trainer.module.body.requires_grad_(True)
            trainer.module.head.bias.requires_grad_(False)
            trainer.optimizers[0].add_param_group(
                {"params": list(trainer.module.body.parameters()), "lr": 0.01}
            )


def on_rank(folder, strategy, epochs, name, resume=None, devices=2):
    module = Net()
    trainer = Trainer(
        strategy=strategy,
        devices=devices,
        accelerator="cpu",
        progress=False,
        loggers=False,
        max_epochs=epochs,
        callbacks=Unfreeze(),
        run_dir=folder / name,
        global_batch_size=4,
        precision="32",
    )
    try:
        trainer.fit(module, DataLoader(TensorDataset(X), 4 // devices), resume=resume)
    except PacelineError as error:
        return {"error": str(error)}
    weights = trainer.strategy.weights.full_tensors(module)
    groups = [group["lr"] for group in trainer.optimizers[0].param_groups]
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    return {
        "weights": {name: value.tolist() for name, value in weights.items()},
        "groups": groups,
        "flags": flags,
        "latest": str(trainer.run.latest),
    }
