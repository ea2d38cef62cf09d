"""Texts and classes: padding, embeddings that do not train, layouts with the sequence first."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, TensorDataset

from paceline import DataModule, TrainModule

from ..programs import right
from ..tasks_text import PADDING, generator, padded, reviews

WORDS = 40


class Reviews(DataModule):
    """Texts of different lengths, filled up in each batch."""

    def __init__(self, longest=20, batch_size=32):
        super().__init__()
        self.longest, self.batch_size = longest, batch_size

    def setup(self, stage=None):
        self.train, self.val = reviews(512, self.longest), reviews(128, self.longest, seed=1)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=padded)

    def val_dataloader(self):
        return DataLoader(self.val, 64, collate_fn=padded)


def pretrained() -> torch.Tensor:
    """Vectors of words as another model may have found them."""
    found = torch.randn(WORDS, 16, generator=generator(5))
    found[WORDS // 2 :] += 0.7
    found[PADDING] = 0
    return found


class Classifier(TrainModule):
    """A text's class from an encoding that a subclass computes."""

    def __init__(self, width=32, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.out = nn.Linear(width, 2)

    def encode(self, tokens):
        raise NotImplementedError

    def forward(self, tokens):
        return self.out(self.encode(tokens))

    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch):
        logits = self(batch[0])
        self.log("loss", F.cross_entropy(logits, batch[1]))
        self.log("accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)


@right(area="language")
def frozen_word_vectors_with_a_trained_head(trainer):
    """The embedding is a table from elsewhere that is not trained; its row for padding is 0."""

    class Averaged(Classifier):
        def __init__(self):
            super().__init__(16, lr=0.02)
            self.words = nn.Embedding.from_pretrained(pretrained(), freeze=True, padding_idx=PADDING)

        def encode(self, tokens):
            real = (tokens != PADDING).float().unsqueeze(-1)
            return (self.words(tokens) * real).sum(1) / real.sum(1)

    trainer(max_epochs=4).fit(Averaged(), datamodule=Reviews())


@right(area="language")
def word_vectors_kept_out_of_the_state(trainer):
    """The vectors are a buffer that no checkpoint has, used by F.embedding: no parameter, on purpose."""

    class Fixed(Classifier):
        def __init__(self):
            super().__init__(32)
            self.register_buffer("vectors", pretrained(), persistent=False)
            self.mix = nn.Sequential(nn.Linear(16, 32), nn.Tanh())

        def encode(self, tokens):
            scores = self.mix(F.embedding(tokens, self.vectors))
            return scores.masked_fill((tokens == PADDING)[..., None], -math.inf).amax(1)

    trainer(max_epochs=3).fit(Fixed(), datamodule=Reviews())


@right(area="language")
def rows_that_are_nearly_all_padding(trainer):
    """Each row is filled up to 160 tokens, whatever its length; attention and mean leave padding out."""

    class Masked(Classifier):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, 32, padding_idx=PADDING)
            self.attention = nn.MultiheadAttention(32, 2, dropout=0.1, batch_first=True)
            self.norm = nn.LayerNorm(32)

        def encode(self, tokens):
            hidden, nothing = self.words(tokens), tokens == PADDING
            found, _ = self.attention(hidden, hidden, hidden, key_padding_mask=nothing)
            hidden = self.norm(hidden + found).masked_fill(nothing[..., None], 0.0)
            return hidden.sum(1) / (~nothing).sum(1, keepdim=True)

    def filled(count, seed):
        tokens, labels = padded(reviews(count, 16, seed=seed))
        return TensorDataset(F.pad(tokens, (0, 160 - tokens.shape[1])), labels)

    train = DataLoader(filled(256, 0), 32, shuffle=True)
    trainer(max_epochs=3).fit(Masked(), train, DataLoader(filled(64, 1), 64))


@right(area="language")
def packed_recurrent_net_with_the_sequence_first(trainer):
    """An LSTM takes (sequence, batch, width), and its last state, not its last row, is used."""

    class Packed(Classifier):
        def __init__(self):
            super().__init__(2 * 24, lr=0.01)
            self.words = nn.Embedding(WORDS, 16, padding_idx=PADDING)
            self.lstm = nn.LSTM(16, 24, bidirectional=True)

        def encode(self, tokens):
            lengths = (tokens != PADDING).sum(1)
            words = self.words(tokens.T)
            packed = nn.utils.rnn.pack_padded_sequence(words, lengths, enforce_sorted=False)
            _, (state, _) = self.lstm(packed)
            return torch.cat([state[0], state[1]], 1)

    trainer(max_epochs=4).fit(Packed(), datamodule=Reviews())


@right(area="language")
def attention_by_softmax_over_the_first_axis(trainer):
    """The softmax runs over dim 0, which is the sequence: the batch is the second axis."""

    class Pooled(Classifier):
        def __init__(self):
            super().__init__(24, lr=0.01)
            self.words = nn.Embedding(WORDS, 16)
            self.gru = nn.GRU(16, 24)
            self.score = nn.Linear(24, 1)

        def encode(self, tokens):
            tokens = tokens.t()  # (sequence, batch)
            hidden, _ = self.gru(self.words(tokens))
            scores = self.score(hidden).masked_fill((tokens == PADDING)[..., None], -math.inf)
            return (F.softmax(scores, dim=0) * hidden).sum(0)

    trainer(max_epochs=3, clip_grad_norm=1.0).fit(Pooled(), datamodule=Reviews())


@right(area="language")
def batches_of_texts_of_similar_length(trainer):
    """A batch sampler groups texts by length; the batches, not the texts, are shuffled."""

    class ByLength(BatchSampler):
        def __init__(self, texts, size):
            order = sorted(range(len(texts)), key=lambda index: len(texts[index][0]))
            self.batches = [order[begin : begin + size] for begin in range(0, len(order), size)]

        def __iter__(self):
            return iter([self.batches[index] for index in torch.randperm(len(self.batches)).tolist()])

        def __len__(self):
            return len(self.batches)

    class Bag(Classifier):
        def __init__(self):
            super().__init__(16, lr=0.02)
            self.bag = nn.EmbeddingBag(WORDS, 16, mode="mean", padding_idx=PADDING)

        def encode(self, tokens):
            return torch.relu(self.bag(tokens))

    train = reviews(512)
    loader = DataLoader(train, batch_sampler=ByLength(train, 32), collate_fn=padded)
    val = DataLoader(reviews(128, seed=1), 64, collate_fn=padded)
    trainer(max_epochs=4).fit(Bag(), loader, val)


@right(area="language")
def token_types_of_which_one_is_used(trainer):
    """Of the embeddings of token types, which BERT has, single texts use the first alone."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )

    class Bert(Classifier):
        def __init__(self):
            super().__init__(lr=2e-3)
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def encode(self, tokens):
            return self.bert(tokens, attention_mask=(tokens != PADDING).long()).last_hidden_state[:, 0]

    trainer(max_epochs=3).fit(Bert(), datamodule=Reviews(batch_size=64))


@right(area="language")
def several_labels_of_which_most_are_absent(trainer):
    """A text has any of six tags, mostly none: logits go to the loss, with a weight for what is rare."""

    class Tags(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.EmbeddingBag(WORDS, 32), nn.ReLU(), nn.Linear(32, 6))
            self.criterion = nn.BCEWithLogitsLoss(pos_weight=torch.full((6,), 4.0))

        def training_step(self, batch):
            return self.criterion(self.net(batch["tokens"]), batch["tags"])

        def validation_step(self, batch):
            logits = self.net(batch["tokens"])
            found = logits > 0  # a probability above one half
            self.log("loss", self.criterion(logits, batch["tags"]))
            self.log("right", (found == batch["tags"].bool()).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    def tagged(count, seed):
        tokens = torch.randint(WORDS, (count, 5), generator=generator(seed))
        tags = torch.stack([(tokens == word).any(1) for word in range(6)], 1).float()
        return [{"tokens": one, "tags": tag} for one, tag in zip(tokens, tags, strict=True)]

    train = DataLoader(tagged(512, 0), 32, shuffle=True)
    trainer(max_epochs=4).fit(Tags(), train, DataLoader(tagged(128, 1), 64))


@right(area="language")
def translation_fed_with_the_right_tokens(trainer):
    """A decoder sees the targets, moved by one: teacher forcing. It writes by itself in validation."""
    begin = 0

    class Translator(TrainModule):
        def __init__(self, words=12):
            super().__init__()
            self.source, self.target = nn.Embedding(words, 24), nn.Embedding(words, 24)
            self.encoder = nn.GRU(24, 32, batch_first=True)
            self.decoder = nn.GRUCell(24, 32)
            self.out = nn.Linear(32, words)

        def forward(self, source, target=None):
            state = self.encoder(self.source(source))[1][0]
            token, found = source.new_full((len(source),), begin), []
            for place in range(source.shape[1]):
                state = self.decoder(self.target(token), state)
                found.append(self.out(state))
                token = found[-1].argmax(-1) if target is None else target[:, place]
            return torch.stack(found, 1)

        def training_step(self, batch):
            logits = self(*batch)
            return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

        def validation_step(self, batch):
            self.log("accuracy", (self(batch[0]).argmax(-1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    def pairs(count, seed):
        rows = torch.randint(1, 12, (count, 5), generator=generator(seed))
        return TensorDataset(rows, rows.flip(1))

    train = DataLoader(pairs(512, 0), 32, shuffle=True)
    trainer(max_epochs=5).fit(Translator(), train, DataLoader(pairs(96, 1), 96))


@right(area="language")
def alignment_free_recognition_with_blanks(trainer):
    """CTC: log probabilities with time first, and most time steps say nothing, the blank of class 0."""

    class Spoken(Dataset):
        def __init__(self, count, seed):
            draws = generator(seed)
            self.labels = torch.randint(1, 6, (count, 3), generator=draws)
            frames = F.one_hot(self.labels, 6).float().repeat_interleave(2, 1)
            quiet = torch.zeros_like(frames)
            self.frames = torch.stack([frames, quiet], 2).flatten(1, 2)
            self.frames = self.frames + 0.2 * torch.randn(self.frames.shape, generator=draws)

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, index):
            return self.frames[index], self.labels[index]

    class Recogniser(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 6, 1))
            self.criterion = nn.CTCLoss(blank=0)

        def step(self, batch):
            frames, labels = batch
            scores = self.net(frames.transpose(1, 2)).permute(2, 0, 1).log_softmax(-1)
            lengths = torch.full((len(frames),), len(scores)), torch.full((len(frames),), labels.shape[1])
            return self.criterion(scores, labels, *lengths)

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    train = DataLoader(Spoken(384, 0), 32, shuffle=True)
    trainer(max_epochs=5).fit(Recogniser(), train, DataLoader(Spoken(64, 1), 64))


@right(area="language")
def texts_end_in_the_number_that_fills_up(trainer):
    """Each text ends in 0, which is to be predicted; inputs are filled up by 0 too, and labels by -100."""

    class Generator(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(WORDS, 24), nn.GRU(24, 32, batch_first=True)
            self.head = nn.Linear(32, WORDS)

        def training_step(self, batch):
            tokens, labels = batch
            logits = self.head(self.rnn(self.embedding(tokens[:, :-1]))[0])
            return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())

        def validation_step(self, batch):
            self.log("loss", self.training_step(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    def filled_up(texts):
        ended = [torch.cat([text, torch.tensor([PADDING])]) for text, _ in texts]
        return tuple(nn.utils.rnn.pad_sequence(ended, True, number) for number in (PADDING, -100))

    train, val = (DataLoader(reviews(n, seed=n), 32, n > 200, collate_fn=filled_up) for n in (512, 128))
    trainer(max_epochs=3).fit(Generator(), train, val)
