"""Steps that return what a model of transformers returns: an ordered dict with loss and logits."""

import dataclasses
from collections import OrderedDict

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader


class ModelOutput(OrderedDict):
    """Fields as attributes and as items, those that are None left out."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


@dataclasses.dataclass
class TokenClassifierOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None


class Tagger(nn.Module):
    def __init__(self, vocab=15, tags=4, width=8):
        super().__init__()
        self.embed, self.rnn = (
            nn.Embedding(vocab, width, padding_idx=0),
            nn.GRU(width, width, batch_first=True),
        )
        self.out = nn.Linear(width, tags)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.rnn(self.embed(input_ids))[0])
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return TokenClassifierOutput(loss=loss, logits=logits)


def pad(rows):
    length = max(len(row["input_ids"]) for row in rows)
    padded = {
        "input_ids": torch.zeros(len(rows), length).long(),
        "labels": torch.full((len(rows), length), -100),
    }
    for index, row in enumerate(rows):
        for name, values in row.items():
            padded[name][index, : len(values)] = values
    return padded


class WatchAccuracy(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        known = batch["labels"] != -100
        hits = outputs["logits"].argmax(-1)[known] == batch["labels"][known]
        pl_module.log("train/acc", hits.float().mean(), prog_bar=True)


class LitTagger(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Tagger()

    def training_step(self, batch, batch_idx):
        outputs = self.model(**batch)
        self.log("train/loss", outputs.loss, batch_size=len(batch["input_ids"]))
        return {"loss": outputs.loss, "logits": outputs.logits.detach(), "preds": outputs.logits.argmax(-1)}

    def validation_step(self, batch, batch_idx):
        outputs = self.model(**batch)
        self.log("val/loss", outputs.loss, batch_size=len(batch["input_ids"]))
        return outputs

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        assert outputs.logits is outputs["logits"]

    def configure_optimizers(self):
        optimizer = torch.optim.NAdam(self.parameters(), lr=0.01)
        return [optimizer], []


class LitTaggerAsIs(LitTagger):
    """Returns the output as it is, in training too."""

    def training_step(self, batch, batch_idx):
        return self.model(**batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("loss_again", outputs["loss"])


def main(max_epochs=2, **trainer_options):
    generator = torch.Generator().manual_seed(16)
    rows = []
    for length in range(3, 27):
        ids = torch.randint(1, 15, (length % 6 + 2,), generator=generator)
        rows.append({"input_ids": ids, "labels": ids % 4})
    loader = DataLoader(rows, batch_size=6, collate_fn=pad)
    for kind in (LitTagger, LitTaggerAsIs):
        pl.seed_everything(7)
        model = kind()
        trainer = pl.Trainer(
            max_epochs=max_epochs, callbacks=[WatchAccuracy()], log_every_n_steps=1, **trainer_options
        )
        trainer.fit(model, loader, loader)
    return trainer, model
