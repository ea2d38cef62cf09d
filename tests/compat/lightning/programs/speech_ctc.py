"""Speech recognition with CTC: batches of similar length, packed sequences, a warmup, greedy decoding.

python speech_ctc.py --epochs 30 --hidden 256 --max-frames 4000
"""

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm, rank_zero_info
from lightning.pytorch.utilities.types import EVAL_DATALOADERS, TRAIN_DATALOADERS
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

ALPHABET = "abcdef "


@dataclass
class DataConfig:
    train_utterances: int = 36
    dev_utterances: int = 10
    n_mels: int = 8
    max_frames: int = 160  # of a batch, with padding
    bucket_width: int = 12
    seed: int = 7


@dataclass
class OptimConfig:
    lr: float = 2e-2
    betas: tuple[float, float] = (0.9, 0.98)
    warmup_steps: int = 8
    clip: float = 1.0


@dataclass
class Config:
    hidden: int = 16
    layers: int = 1
    time_mask: int = 3
    epochs: int = 4
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)


class Tokenizer:
    """Characters as numbers; 0 is the blank of CTC."""

    blank = 0

    def __init__(self, alphabet: str = ALPHABET) -> None:
        self.index = {char: i + 1 for i, char in enumerate(alphabet)}
        self.chars = {i: char for char, i in self.index.items()}

    def __len__(self) -> int:
        return len(self.index) + 1

    def encode(self, text: str) -> list[int]:
        return [self.index[char] for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.chars[i] for i in ids if i != self.blank)

    def collapse(self, path: list[int]) -> str:
        """The text of a path: repetitions and blanks taken out."""
        kept = [i for position, i in enumerate(path) if position == 0 or i != path[position - 1]]
        return self.decode(kept)


# --- data -------------------------------------------------------------------------------------------


class Utterance(NamedTuple):
    uid: str
    features: Tensor
    text: str


class Batch(NamedTuple):
    uids: list[str]
    features: Tensor  # (batch, frames, mels)
    feature_lengths: Tensor
    targets: Tensor  # (batch, characters)
    target_lengths: Tensor
    texts: list[str]


class SyntheticSpeech(Dataset):
    """Each character is a few frames in which its own channel is loud."""

    def __init__(self, config: DataConfig, count: int, first: int, noise: float) -> None:
        self.config, self.first, self.noise = config, first, noise
        self.texts, self.durations = [], []
        for i in range(count):
            rng = random.Random(config.seed * 1000 + first + i)
            words = [
                "".join(rng.choices(ALPHABET[:-1], k=rng.randint(2, 4))) for _ in range(rng.randint(1, 3))
            ]
            self.texts.append(" ".join(words))
            self.durations.append([rng.randint(2, 4) for _ in self.texts[-1]])

    def __len__(self) -> int:
        return len(self.texts)

    def length(self, index: int) -> int:
        return sum(self.durations[index])

    def __getitem__(self, index: int) -> Utterance:
        generator = torch.Generator().manual_seed(self.config.seed + self.first + index)
        rows = []
        for char, duration in zip(self.texts[index], self.durations[index], strict=False):
            row = torch.zeros(self.config.n_mels)
            row[ALPHABET.index(char)] = 2.0
            rows.append(row.expand(duration, -1))
        clean = torch.cat(rows)
        features = clean + self.noise * torch.randn(clean.shape, generator=generator)
        return Utterance(f"utt{self.first + index:04d}", features, self.texts[index])


class BucketBatchSampler(Sampler[list[int]]):
    """Batches of utterances of similar length, of at most ``max_frames`` with padding."""

    def __init__(self, lengths: list[int], max_frames: int, width: int, shuffle: bool, seed: int) -> None:
        self.lengths, self.max_frames, self.width = lengths, max_frames, width
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batches(self) -> list[list[int]]:
        rng = random.Random(self.seed + self.epoch)
        buckets: dict[int, list[int]] = {}
        for index, length in enumerate(self.lengths):
            buckets.setdefault(length // self.width, []).append(index)
        batches = []
        for _, bucket in sorted(buckets.items()):
            if self.shuffle:
                rng.shuffle(bucket)
            batch: list[int] = []
            for index in bucket:
                longest = max(self.lengths[i] for i in [*batch, index])
                if batch and longest * (len(batch) + 1) > self.max_frames:
                    batches.append(batch)
                    batch = []
                batch.append(index)
            batches.append(batch)
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._batches()

    def __len__(self) -> int:
        return len(self._batches())


class Collate:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, items: list[Utterance]) -> Batch:
        items = sorted(items, key=lambda item: -len(item.features))
        targets = [torch.tensor(self.tokenizer.encode(item.text)) for item in items]
        return Batch(
            uids=[item.uid for item in items],
            features=pad_sequence([item.features for item in items], batch_first=True),
            feature_lengths=torch.tensor([len(item.features) for item in items]),
            targets=pad_sequence(targets, batch_first=True),
            target_lengths=torch.tensor([len(target) for target in targets]),
            texts=[item.text for item in items],
        )


class SpeechDataModule(L.LightningDataModule):
    def __init__(self, config: DataConfig, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.config = config
        self.collate = Collate(tokenizer)

    def setup(self, stage: str) -> None:
        train, dev = self.config.train_utterances, self.config.dev_utterances
        if stage == "fit":
            self.train = SyntheticSpeech(self.config, train, 0, noise=0.3)
        self.dev_clean = SyntheticSpeech(self.config, dev, train, noise=0.1)
        self.dev_other = SyntheticSpeech(self.config, dev, train + dev, noise=0.6)

    def _loader(self, dataset: SyntheticSpeech, shuffle: bool) -> DataLoader[Batch]:
        lengths = [dataset.length(i) for i in range(len(dataset))]
        sampler = BucketBatchSampler(
            lengths, self.config.max_frames, self.config.bucket_width, shuffle, self.config.seed
        )
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=self.collate, num_workers=0)

    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> EVAL_DATALOADERS:
        return [self._loader(self.dev_clean, shuffle=False), self._loader(self.dev_other, shuffle=False)]

    def test_dataloader(self) -> EVAL_DATALOADERS:
        return self._loader(self.dev_clean, shuffle=False)


# --- model ------------------------------------------------------------------------------------------


def edit_distance(one: str | list[str], other: str | list[str]) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


class Encoder(nn.Module):
    def __init__(self, n_mels: int, hidden: int, layers: int, n_tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(n_mels)
        self.rnn = nn.GRU(n_mels, hidden, layers, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, n_tokens)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.norm(features), lengths.cpu(), batch_first=True)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(x).log_softmax(-1)


class SpeechRecognizer(L.LightningModule):
    def __init__(
        self, hidden: int, layers: int, time_mask: int, optim: dict[str, Any], n_mels: int = 8
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.tokenizer = Tokenizer()
        self.encoder = Encoder(n_mels, hidden, layers, len(self.tokenizer))
        self.criterion = nn.CTCLoss(blank=Tokenizer.blank, zero_infinity=True)
        self.outputs: dict[int, list[tuple[str, str]]] = {}

    def forward(self, batch: Batch) -> Tensor:
        return self.encoder(batch.features, batch.feature_lengths)

    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.batch_sampler.set_epoch(self.current_epoch)

    def _spec_augment(self, batch: Batch, batch_idx: int) -> Batch:
        generator = torch.Generator().manual_seed(1009 * self.current_epoch + batch_idx)
        features = batch.features.clone()
        for row, length in zip(features, batch.feature_lengths, strict=False):
            start = int(torch.randint(int(length), (1,), generator=generator))
            row[start : start + self.hparams.time_mask] = 0
        return batch._replace(features=features)

    def _loss(self, log_probs: Tensor, batch: Batch) -> Tensor:
        return self.criterion(
            log_probs.transpose(0, 1), batch.targets, batch.feature_lengths, batch.target_lengths
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        batch = self._spec_augment(batch, batch_idx)
        loss = self._loss(self(batch), batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch.uids))
        self.log(
            "frames", float(batch.feature_lengths.sum()), on_step=False, on_epoch=True, reduce_fx="sum"
        )
        return loss

    def decode(self, log_probs: Tensor, lengths: Tensor) -> list[str]:
        paths = log_probs.argmax(-1)
        return [self.tokenizer.collapse(p[:n].tolist()) for p, n in zip(paths, lengths, strict=False)]

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        log_probs = self(batch)
        self.log("val_loss", self._loss(log_probs, batch), batch_size=len(batch.uids))
        pairs = list(zip(self.decode(log_probs, batch.feature_lengths), batch.texts, strict=False))
        self.outputs.setdefault(dataloader_idx, []).extend(pairs)

    def _rates(self, pairs: list[tuple[str, str]]) -> tuple[float, float]:
        characters = sum(edit_distance(found, text) for found, text in pairs)
        words = sum(edit_distance(found.split(), text.split()) for found, text in pairs)
        return (
            characters / sum(len(text) for _, text in pairs),
            words / sum(len(text.split()) for _, text in pairs),
        )

    def on_validation_epoch_end(self) -> None:
        for index, name in enumerate(("clean", "other")):
            cer, wer = self._rates(self.outputs[index])
            self.log(f"cer_{name}", cer, prog_bar=name == "clean")
            self.log(f"wer_{name}", wer)
        found, text = self.outputs[0][0]
        rank_zero_info(f"epoch {self.current_epoch}: {text!r} heard as {found!r}")
        self.outputs.clear()

    def test_step(self, batch: Batch, batch_idx: int) -> list[tuple[str, str]]:
        log_probs = self(batch)
        pairs = list(zip(self.decode(log_probs, batch.feature_lengths), batch.texts, strict=False))
        cer, wer = self._rates(pairs)
        self.log_dict({"test_cer": cer, "test_wer": wer}, batch_size=len(pairs))
        return pairs

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        norms = grad_norm(self.encoder, norm_type=2)
        self.log("grad_norm", norms["grad_2.0_norm_total"])

    def configure_optimizers(self) -> dict[str, Any]:
        optim = self.hparams.optim
        optimizer = torch.optim.Adam(self.parameters(), lr=optim["lr"], betas=tuple(optim["betas"]))
        warmup = optim["warmup_steps"]

        def noam(step: int) -> float:
            step += 1
            return min(step / warmup, math.sqrt(warmup / step))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "noam"},
        }


class Transcripts(Callback):
    """Writes what was heard in a test beside what was said."""

    def __init__(self, path: str) -> None:
        self.path, self.lines = Path(path), []

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self.lines += [
            f"{uid}\t{text}\t{found}" for uid, (found, text) in zip(batch.uids, outputs, strict=False)
        ]

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.write_text("\n".join(self.lines) + "\n")


def config_from(argv: list[str] | None) -> Config:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--max-frames", type=int, default=160)
    args = parser.parse_args(argv)
    return Config(hidden=args.hidden, epochs=args.epochs, data=DataConfig(max_frames=args.max_frames))


def main(argv: list[str] | None = (), **trainer_options: Any) -> tuple[L.Trainer, SpeechRecognizer]:
    config = config_from(argv)
    L.seed_everything(config.data.seed)
    model = SpeechRecognizer(
        config.hidden, config.layers, config.time_mask, asdict(config.optim), n_mels=config.data.n_mels
    )
    datamodule = SpeechDataModule(config.data, model.tokenizer)
    best = ModelCheckpoint(
        dirpath="checkpoints", filename="{epoch}-{cer_clean:.3f}", monitor="cer_clean", save_top_k=1
    )
    timer = Timer(duration="00:01:00:00")
    trainer = L.Trainer(
        callbacks=[
            best,
            timer,
            EarlyStopping("cer_clean", patience=8),
            LearningRateMonitor(),
            Transcripts("transcripts.tsv"),
        ],
        logger=CSVLogger("logs", name="ctc"),
        gradient_clip_val=config.optim.clip,
        use_distributed_sampler=False,
        val_check_interval=0.5,
        log_every_n_steps=1,
        **{"max_epochs": config.epochs} | trainer_options,
    )
    trainer.fit(model, datamodule)
    assert timer.time_elapsed("train") > 0

    trainer.test(model, datamodule, ckpt_path=best.best_model_path)
    transcripts = Path("transcripts.tsv").read_text().splitlines()
    assert len(transcripts) == config.data.dev_utterances

    loaded = SpeechRecognizer.load_from_checkpoint(best.best_model_path).eval()
    assert loaded.hparams.optim["warmup_steps"] == config.optim.warmup_steps
    batch = next(iter(datamodule.test_dataloader()))
    with torch.no_grad():
        heard = loaded.decode(loaded(batch), batch.feature_lengths)
    assert heard == [line.split("\t")[2] for line in transcripts[: len(heard)]]
    return trainer, model


if __name__ == "__main__":
    main(None)
