import lightning as L
import task
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup


class LanguageModel(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        loss = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("val_loss", self.model(**batch).loss, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)
        scheduler = get_linear_schedule_with_warmup(optimizer, 0, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


L.seed_everything(0)
model, train, validation = task.gpt()
model.train()
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=task.EPOCHS,
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    logger=TensorBoardLogger("."),
)
trainer.fit(LanguageModel(model), DataLoader(train, batch_size=16), DataLoader(validation, batch_size=16))
task.report(trainer.callback_metrics["val_loss"])
