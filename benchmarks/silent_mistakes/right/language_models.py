"""Language models whose weights, masks and labels look odd and are as they should be."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import TrainModule

from ..programs import right
from ..tasks_text import PADDING, generator, sentences

WORDS = 24
IGNORED = -100


class Block(nn.Module):
    """Attention and a network of two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, padding: Any) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, y, attn_mask=hidden, key_padding_mask=padding)[0])
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """A causal transformer."""

    def __init__(self, words: int = WORDS, width: int = 32, length: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, prompt: Any = None, padding: Any = None) -> torch.Tensor:
        x = self.words(tokens)
        x = x if prompt is None else torch.cat([prompt, x], 1)
        x = x + self.places(torch.arange(x.shape[1]))
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        for block in self.blocks:
            x = block(x, hidden, padding)
        return self.head(self.norm(x))


class LanguageModel(TrainModule):
    """Predicts the next token; labels are the inputs themselves, moved by one in the loss."""

    def __init__(self, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.net = Decoder()

    def loss_of(self, batch: Any) -> torch.Tensor:
        tokens, labels = batch
        logits = self.net(tokens)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)

    def training_step(self, batch):
        return self.loss_of(batch)

    def validation_step(self, batch):
        self.log("loss", self.loss_of(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)


def loaders(train: Dataset[Any], val: Dataset[Any]) -> tuple[Any, Any]:
    return DataLoader(train, 32, shuffle=True), DataLoader(val, 64)


def plain() -> tuple[Any, Any]:
    train, val = sentences(512), sentences(96, seed=1)
    return loaders(TensorDataset(train, train), TensorDataset(val, val))


@right(area="language")
def causal_model_with_labels_equal_to_inputs(trainer):
    """The labels are the very tensor of the inputs: the loss moves them by one."""
    trainer(max_epochs=3).fit(LanguageModel(), *plain())


@right(area="language")
def output_layer_tied_to_the_embedding(trainer):
    """One weight is the embedding and the output layer, as in GPT-2."""

    class Tied(LanguageModel):
        def __init__(self):
            super().__init__()
            nn.init.normal_(self.net.words.weight, std=0.1)
            self.net.head.weight = self.net.words.weight

    trainer(max_epochs=5).fit(Tied(), *plain())


@right(area="language", source="https://arxiv.org/abs/1909.11942")
def layers_shared_across_depth(trainer):
    """One block is applied four times, as ALBERT does to save weights."""

    class Albert(TrainModule):
        def __init__(self, repeats=4):
            super().__init__()
            self.words = nn.Embedding(WORDS, 32)
            self.shared = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
            self.head = nn.Linear(32, WORDS)

        def forward(self, tokens):
            hidden = self.words(tokens)
            mask = torch.full((tokens.shape[1],) * 2, -math.inf).triu(1)
            for _ in range(self.hparams.repeats):
                hidden = self.shared(hidden, src_mask=mask)
            return self.head(hidden)

        def training_step(self, batch):
            return F.cross_entropy(self(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:])

        def validation_step(self, batch):
            logits = self(batch[0][:, :-1])
            self.log("accuracy", (logits.argmax(-1) == batch[0][:, 1:]).float().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

    train, val = plain()
    trainer(max_epochs=3).fit(Albert(), train, val)


@right(area="language")
def instruction_tuning_that_learns_answers_only(trainer):
    """The labels of the long questions are ignored: nine of ten positions count for nothing."""

    class Chats(Dataset):
        def __init__(self, count, seed):
            self.rows = sentences(count, 40, seed=seed)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            row = self.rows[index]
            labels = row.clone()
            labels[:36] = IGNORED
            return row, labels

    trainer(max_epochs=3).fit(LanguageModel(), *loaders(Chats(384, 0), Chats(64, 1)))


@right(area="language")
def masked_model_with_few_labels(trainer):
    """15 % of the tokens are masked and learned, as in BERT; the same masks in each validation."""
    mask_token = WORDS

    def collate(rows):
        tokens = torch.stack([row for (row,) in rows])
        chosen = torch.rand(tokens.shape) < 0.15
        chosen[:, 0] |= ~chosen.any(1)
        return {"tokens": tokens.masked_fill(chosen, mask_token), "labels": tokens.where(chosen, IGNORED)}

    class Masked(TrainModule):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS + 1, 32), nn.Parameter(torch.randn(16, 32) * 0.02)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(32, WORDS + 1)
            self.criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)

        def step(self, batch):
            logits = self.head(self.encoder(self.words(batch["tokens"]) + self.places))
            return self.criterion(logits.flatten(0, 1), batch["labels"].flatten())

        def training_step(self, batch):
            return {"loss": self.step(batch), "weight": (batch["labels"] != IGNORED).sum()}

        def validation_step(self, batch):
            self.log("loss", self.step(batch), weight=(batch["labels"] != IGNORED).sum())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    masked = collate([(row,) for row in sentences(96, seed=1)])
    fixed = [{name: value[i] for name, value in masked.items()} for i in range(96)]
    train = DataLoader(TensorDataset(sentences(512)), 32, shuffle=True, collate_fn=collate)
    trainer(max_epochs=6).fit(Masked(), train, DataLoader(fixed, 48))


@right(area="language")
def several_texts_packed_into_a_row(trainer):
    """Texts share a row, with a mask of blocks; the first token of each has no label."""

    class Packed(TrainModule):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, 32)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, WORDS)

        def step(self, batch):
            tokens, document = batch
            hidden = self.words(tokens)
            causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
            seen = causal & (document[:, :, None] == document[:, None])
            found, _ = self.attention(hidden, hidden, hidden, attn_mask=~seen.repeat_interleave(4, 0))
            logits = self.head(self.norm(hidden + found))
            labels = tokens[:, 1:].masked_fill(document[:, 1:] != document[:, :-1], IGNORED)
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels, ignore_index=IGNORED)

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    def packed(count, seed):
        rows = sentences(3 * count, 8, seed=seed).view(count, 24)
        return TensorDataset(rows, (torch.arange(24) // 8).expand(count, 24))

    trainer(max_epochs=4).fit(Packed(), *loaders(packed(320, 0), packed(64, 1)))


@right(area="language", source="https://arxiv.org/abs/2104.08691")
def prompt_tuning_of_a_frozen_model(trainer):
    """Four vectors are trained, in front of a model all of which is frozen."""

    class Prompted(LanguageModel):
        def __init__(self, net):
            super().__init__(lr=0.05)
            self.net = net.requires_grad_(False)
            self.prompt = nn.Parameter(net.words.weight[1:5].detach().clone())

        def loss_of(self, batch):
            tokens, labels = batch
            logits = self.net(tokens, self.prompt.expand(len(tokens), -1, -1))[:, 4:-1]
            return F.cross_entropy(logits.transpose(1, 2), labels[:, 1:])

    # The base has read texts in both directions, and is told by the prompt that all are backwards.
    rows = sentences(512)
    base, both = LanguageModel(), torch.cat([rows[:256], rows[256:].flip(1)])
    trainer(max_epochs=3).fit(base, DataLoader(TensorDataset(both, both), 32, shuffle=True))
    train, val = (sentences(count, seed=seed).flip(1) for count, seed in ((256, 2), (64, 3)))
    parts = loaders(TensorDataset(train, train), TensorDataset(val, val))
    trainer(max_epochs=3).fit(Prompted(base.net), *parts)


@right(area="language", source="https://arxiv.org/abs/2106.09685")
def low_rank_adapters_that_begin_at_zero(trainer):
    """LoRA: one factor is 0 at first, so that the other has no gradient in the first step."""

    class Adapted(nn.Module):
        def __init__(self, layer, rank=4):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
            self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

        def forward(self, x):
            return self.layer(x) + x @ self.down.T @ self.up.T

    base = LanguageModel()
    trainer(max_epochs=2).fit(base, *plain())
    tuned = LanguageModel(lr=0.02)
    tuned.net = base.net.requires_grad_(False)
    for block in tuned.net.blocks:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
    train, val = (sentences(count, seed=seed).flip(1) for count, seed in ((256, 2), (64, 3)))
    parts = loaders(TensorDataset(train, train), TensorDataset(val, val))
    trainer(max_epochs=3).fit(tuned, *parts)


@right(area="language")
def noise_contrastive_words_with_sparse_gradients(trainer):
    """Skip-gram with negative samples: embeddings with sparse gradients, of which a step moves few rows."""

    class SkipGram(TrainModule):
        def __init__(self, words=100, width=16):
            super().__init__()
            self.inner = nn.Embedding(words, width, sparse=True)
            self.outer = nn.Embedding(words, width, sparse=True)
            nn.init.zeros_(self.outer.weight)

        def step(self, batch):
            words, near, others = batch
            word = self.inner(words)
            positive = (word * self.outer(near)).sum(-1)
            negative = torch.einsum("bw,bnw->bn", word, self.outer(others))
            return -F.logsigmoid(positive).mean() - F.logsigmoid(-negative).sum(-1).mean()

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.SparseAdam(list(self.parameters()), lr=0.02)

    def pairs(count, seed):
        draws = generator(seed)
        words = torch.randint(100, (count,), generator=draws)
        near = (words // 20 * 20 + torch.randint(20, (count,), generator=draws)) % 100
        return TensorDataset(words, near, torch.randint(100, (count, 5), generator=draws))

    trainer(max_epochs=3).fit(SkipGram(), *loaders(pairs(3000, 0), pairs(300, 1)))


@right(area="language")
def loss_in_bits_of_padded_texts(trainer):
    """Most of a row is padding, which is masked in attention and ignored in the loss."""

    class Padded(LanguageModel):
        def loss_of(self, batch):
            (tokens,) = batch
            logits = self.net(tokens, padding=tokens == PADDING)[:, :-1]
            loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
            counted = tokens[:, 1:] != PADDING
            return loss[counted].mean() / math.log(2)

    def texts(count, seed):
        rows = sentences(count, 48, seed=seed)
        lengths = torch.randint(4, 14, (count, 1), generator=generator(seed))
        return TensorDataset(rows * (torch.arange(48) < lengths))

    trainer(max_epochs=3).fit(Padded(), *loaders(texts(320, 0), texts(64, 1)))
