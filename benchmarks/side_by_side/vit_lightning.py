import lightning as L
import task
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader


class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        loss = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        output = self.model(**batch)
        self.log("val_loss", output.loss)
        accuracy = (output.logits.argmax(-1) == batch["labels"]).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)


L.seed_everything(0)
model, train, validation = task.vit()
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=task.EPOCHS,
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    logger=TensorBoardLogger("."),
)
trainer.fit(Classifier(model), DataLoader(train, batch_size=32), DataLoader(validation, batch_size=32))
task.report(trainer.callback_metrics["val_accuracy"])
