import task
import torch
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint
from paceline.schedules import Linear


class Classifier(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = task.Net()

    def training_step(self, batch):
        return self.net(**batch)["loss"]

    def validation_step(self, batch):
        output = self.net(**batch)
        self.log("accuracy", (output["logits"].argmax(1) == batch["y"]).float().mean())
        return output["loss"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": Linear()}


options = task.options
seed_everything(0)
module = Classifier()
trainer = Trainer(
    accelerator="cpu",
    devices=options.devices or "auto",
    strategy=options.strategy if task.WORLD > 1 else "auto",
    max_epochs=options.epochs,
    global_batch_size=options.batch,
    callbacks=Checkpoint(f"{options.save}st"),
    name="run",
)
if options.evaluate:
    trainer.validate(module, DataLoader(task.Samples(7), 2))
    task.report(accuracy=trainer.metrics["val/accuracy"], loss=trainer.metrics["val/loss"])
else:
    loader = DataLoader(task.Samples(options.samples), options.batch, shuffle=True)
    trainer.fit(module, loader, resume="auto" if options.resume else None)
    task.done(module.net)
