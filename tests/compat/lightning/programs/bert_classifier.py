"""A small transformer encoder as BERT is fine-tuned: parameter groups, linear warm-up by step, accuracy."""

import torch
import torch.nn as nn
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


class GLUELikeDataModule(LightningDataModule):
    def __init__(self, vocab_size: int = 40, length: int = 10, train_batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str | None = None):
        generator = torch.Generator().manual_seed(19)
        shape = (72, self.hparams.length)
        tokens = torch.randint(1, self.hparams.vocab_size, shape, generator=generator)
        labels = (tokens[:, 0] > self.hparams.vocab_size // 2).long()
        rows = [
            {"input_ids": ids, "attention_mask": (ids > 2).long(), "labels": label}
            for ids, label in zip(tokens, labels, strict=True)
        ]
        self.dataset = {"train": rows[:48], "validation": rows[48:]}

    def train_dataloader(self):
        return DataLoader(self.dataset["train"], batch_size=self.hparams.train_batch_size)

    def val_dataloader(self):
        return DataLoader(self.dataset["validation"], batch_size=8)


class TinyBert(nn.Module):
    def __init__(self, vocab_size, dim=16, heads=2, layers=2, num_labels=2):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(dim, num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.classifier(hidden[:, 0])
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return loss, logits


class GLUETransformer(LightningModule):
    def __init__(
        self,
        vocab_size: int,
        learning_rate: float = 2e-3,
        warmup_steps: int = 3,
        weight_decay: float = 0.01,
        eval_splits: list | None = None,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.model = TinyBert(vocab_size)
        self.validation_step_outputs = []

    def forward(self, **inputs):
        return self.model(**inputs)

    def training_step(self, batch, batch_idx):
        loss, _ = self(**batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        val_loss, logits = self(**batch)
        outputs = {"loss": val_loss, "preds": logits.argmax(dim=1), "labels": batch["labels"]}
        self.validation_step_outputs.append(outputs)
        return outputs

    def on_validation_epoch_end(self):
        preds = torch.cat([x["preds"] for x in self.validation_step_outputs])
        labels = torch.cat([x["labels"] for x in self.validation_step_outputs])
        loss = torch.stack([x["loss"] for x in self.validation_step_outputs]).mean()
        self.log("val_loss", loss, prog_bar=True)
        self.log_dict({"accuracy": (preds == labels).float().mean()}, prog_bar=True)
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        """Prepare optimizer and schedule (linear warmup and decay)."""
        no_decay = ["bias", "norm"]
        named = list(self.model.named_parameters())
        groups = [
            {
                "params": [p for n, p in named if not any(nd in n for nd in no_decay)],
                "weight_decay": self.hparams.weight_decay,
            },
            {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.hparams.learning_rate, eps=1e-8)
        total, warmup = self.trainer.estimated_stepping_batches, self.hparams.warmup_steps

        def lr_lambda(step):
            if step < warmup:
                return step / max(1, warmup)
            return max(0.0, (total - step) / max(1, total - warmup))

        scheduler = {"scheduler": LambdaLR(optimizer, lr_lambda), "interval": "step", "frequency": 1}
        return [optimizer], [scheduler]


def main(max_epochs=2, **trainer_options):
    seed_everything(42)
    dm = GLUELikeDataModule()
    dm.setup("fit")
    model = GLUETransformer(vocab_size=dm.hparams.vocab_size)
    trainer = Trainer(
        max_epochs=max_epochs,
        logger=TensorBoardLogger("tb_logs", name="glue"),
        callbacks=[LearningRateMonitor(logging_interval="step"), ModelCheckpoint(monitor="val_loss")],
        log_every_n_steps=1,
        **trainer_options,
    )
    trainer.fit(model, datamodule=dm)
    return trainer, model
