"""Losses of words: labels that are ignored, padding that counts, labels that are not shifted."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import DataModule, TrainModule

from ...programs import planted
from ...tasks import loader, loaders, masks, sentences, text, waves


class Gpt(nn.Module):
    """A small causal transformer."""

    def __init__(self, words=20, width=24, length=12):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 48, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.words(tokens) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.norm(self.layer(x, src_mask=mask, is_causal=True)))


class Recurrent(nn.Module):
    """A language model of an LSTM."""

    def __init__(self, words=20, width=24):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def padded(n=200, words=20):
    """Token sequences of 4 to 12 tokens, with 0 after their ends."""
    tokens = text(n, words=words)
    lengths = 4 + torch.arange(n) % 9
    return tokens.masked_fill(torch.arange(12) >= lengths[:, None], 0)


class Chat(Dataset):
    """Prompts of eight tokens and answers of four, cut to a length."""

    def __init__(self, tokens, length, marker=None):
        self.tokens, self.length, self.marker = tokens, length, marker

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        tokens = self.tokens[row]
        labels = tokens.clone()
        if self.marker is None:
            labels[:8] = -100
        else:
            found = (tokens == self.marker).nonzero()
            labels[: int(found[0]) if len(found) else len(tokens)] = -100
        return {"input_ids": tokens[: self.length], "labels": labels[: self.length]}


class Finetuned(TrainModule):
    """Answers alone are learned: labels of -100 are ignored."""

    def __init__(self):
        super().__init__()
        self.model = Gpt()

    def loss(self, batch):
        logits, labels = self.model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        return losses / (labels != -100).sum().clamp(min=1)

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.0)


@planted("ignored-labels", area="language", source="https://github.com/huggingface/trl/pull/6671")
def cuts_all_answers_off(trainer):
    """Samples are cut to eight tokens, the length of the prompt: no label of an answer is left."""
    tokens = text(192)
    train = DataLoader(Chat(tokens[:160], length=8), 32, shuffle=True)
    trainer(max_epochs=3).fit(Finetuned(), train, DataLoader(Chat(tokens[160:], length=8), 32))


@planted("ignored-labels", area="language", source="https://github.com/snowflakedb/ArcticTraining/pull/339")
def looks_for_a_marker_that_no_sample_has(trainer):
    """Labels begin at a token that the template never writes, so that nearly all are ignored."""
    tokens = text(192)
    tokens[tokens == 19] = 18
    tokens[::64, 9] = 19
    train = DataLoader(Chat(tokens[:160], length=12, marker=19), 32, shuffle=True)
    trainer(max_epochs=3).fit(Finetuned(), train, DataLoader(Chat(tokens[160:], 12, marker=19), 32))


@planted("ignored-labels", area="vision")
def ignores_all_pixels_but_the_border(trainer):
    """Border pixels were to be ignored, and the condition is upside down: they alone are kept."""

    class Segmentation(TrainModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU())
            self.head = nn.Conv2d(12, 3, 3, padding=1)
            self.criterion = nn.CrossEntropyLoss(ignore_index=255)

        def training_step(self, batch):
            images, truth = batch
            return self.criterion(self.head(self.body(images)), truth)

        def validation_step(self, batch):
            images, truth = batch
            return self.criterion(self.head(self.body(images)), truth)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    images, truth = masks(160)
    border = (truth == 1) & (truth.roll(1, 1) == 0)
    truth = truth.masked_fill(border, 2)
    trainer(max_epochs=3).fit(Segmentation(), *loaders(images, truth.masked_fill(truth != 2, 255)))


@planted(
    "padding-in-loss", area="language", source="https://github.com/huggingface/transformers/issues/2759"
)
def ignores_another_index_than_the_one_of_padding(trainer):
    """The loss ignores -1, padding is labelled 0: padded positions count."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = Recurrent()
            self.loss_fct = nn.CrossEntropyLoss(ignore_index=-1)

        def training_step(self, batch):
            logits = self.model(batch[0])
            return self.loss_fct(logits[:, :-1].reshape(-1, 20), batch[0][:, 1:].reshape(-1))

        def validation_step(self, batch):
            logits = self.model(batch[0])
            return self.loss_fct(logits[:, :-1].reshape(-1, 20), batch[0][:, 1:].reshape(-1))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Language(), *loaders(padded()))


class Sentences(DataModule):
    """Lists of tokens of several lengths, padded for each batch."""

    def setup(self, stage):
        self.rows = [row[row > 0] for row in padded(240)]

    @staticmethod
    def collate(rows):
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
        return {"tokens": tokens, "mask": tokens > 0}

    def train_dataloader(self):
        return DataLoader(self.rows[:200], 32, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(self.rows[200:], 40, collate_fn=self.collate)


@planted("padding-in-loss", area="language", source="https://github.com/lucidrains/DALLE-pytorch/issues/57")
def defines_an_index_to_ignore_and_does_not_use_it(trainer):
    """The index to ignore is an attribute that the loss is never given."""

    class Language(TrainModule):
        def __init__(self, ignore_index=0):
            super().__init__()
            self.model, self.ignore_index = Gpt(), ignore_index

        def loss(self, batch):
            logits = self.model(batch["tokens"][:, :-1])
            return F.cross_entropy(logits.transpose(1, 2), batch["tokens"][:, 1:])

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Language(), Sentences())


@planted(
    "padding-in-loss", area="language", source="https://github.com/hiyoung123/SoftMaskedBert/issues/20"
)
def detects_errors_in_padded_words_too(trainer):
    """The binary loss of each word is a mean over all positions, padded ones with it."""

    class Detector(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.encoder = nn.GRU(16, 16, batch_first=True, bidirectional=True)
            self.detect = nn.Linear(32, 1)

        def loss(self, batch):
            tokens, _, _ = batch
            logits = self.detect(self.encoder(self.embedding(tokens))[0]).squeeze(2)
            wrong = ((tokens > 0) & (tokens < 5)).float()
            return F.binary_cross_entropy_with_logits(logits, wrong)

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=3).fit(Detector(), *loaders(*sentences()))


@planted("padding-in-loss", area="series")
def reconstructs_the_padding_of_series(trainer):
    """Series of several lengths are padded with zeros, and the error of all steps is averaged."""

    class Autoencoder(TrainModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.GRU(1, 12, batch_first=True)
            self.decoder, self.out = nn.GRU(12, 12, batch_first=True), nn.Linear(12, 1)

        def loss(self, batch):
            series, lengths = batch
            states, _ = self.encoder(series)
            code = states[torch.arange(len(series)), lengths - 1]
            states, _ = self.decoder(code[:, None].expand(-1, series.shape[1], -1))
            return F.mse_loss(self.out(states), series)

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    series, _ = waves(200)
    lengths = 8 + torch.arange(200) % 17
    series = series.masked_fill(torch.arange(24)[:, None] >= lengths[:, None, None], 0.0)
    trainer(max_epochs=3).fit(Autoencoder(), *loaders(series, lengths))


@planted("unshifted-labels", area="language", source="https://github.com/huggingface/transformers/pull/404")
def compares_logits_with_the_tokens_that_were_given(trainer):
    """The loss compares the logits of a position with the token at this position."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = Gpt()

        def training_step(self, batch):
            tokens = batch[0]
            return F.cross_entropy(self.model(tokens).view(-1, 20), tokens.view(-1))

        def validation_step(self, batch):
            tokens = batch[0]
            return F.cross_entropy(self.model(tokens).view(-1, 20), tokens.view(-1))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
            return {"optimizer": optimizer, "lr_scheduler": "cosine"}

    trainer(max_epochs=3).fit(Language(), *loaders(text()))


@planted(
    "unshifted-labels",
    area="language",
    source="https://github.com/KempnerInstitute/KempnerForge/issues/154",
)
def masks_the_prompt_and_shifts_no_label(trainer):
    """Labels of a captioning model stand where their tokens stand, and the loss shifts nothing."""

    class Captioner(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = Recurrent()

        def loss(self, batch):
            logits = self.model(batch["input_ids"])
            return F.cross_entropy(logits.transpose(1, 2), batch["labels"], ignore_index=-100)

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    tokens = text(192)
    train = DataLoader(Chat(tokens[:160], length=12), 32, shuffle=True)
    trainer(max_epochs=3).fit(Captioner(), train, DataLoader(Chat(tokens[160:], length=12), 32))


class Bart(nn.Module):
    """A model whose loss is part of its forward, as libraries have it."""

    def __init__(self):
        super().__init__()
        self.decoder = Gpt()

    def forward(self, input_ids, labels=None):
        logits = self.decoder(input_ids)
        if labels is None:
            return logits
        return nn.CrossEntropyLoss()(logits.view(-1, 20), labels.view(-1))


@planted("unshifted-labels", area="language", source="https://github.com/macrocosm-os/pretraining/pull/64")
def relies_on_a_model_that_does_not_shift(trainer):
    """``labels=input_ids`` is given to a model that does not shift them, where others do."""

    class Pretrained(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = Bart()

        def training_step(self, batch):
            return self.model(batch[0], labels=batch[0])

        def validation_step(self, batch):
            return self.model(batch[0], labels=batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Pretrained(), *loaders(text()))


@planted("unshifted-labels", area="language")
def looks_at_the_token_to_predict_by_a_missing_mask(trainer):
    """The targets are the inputs, and the network attends to all positions: it copies them."""

    class Language(TrainModule):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20, 24)
            self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
            self.head = nn.Linear(24, 20)

        def training_step(self, batch):
            inputs = targets = batch[0]
            logits = self.head(self.layer(self.words(inputs)))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    trainer(max_epochs=3).fit(Language(), loader(text()))
