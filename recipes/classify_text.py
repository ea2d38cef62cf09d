"""Texts, or pairs of texts, to labels: a BERT of Hugging Face with a new head, as GLUE's examples have it.

paceline fit classify-text                    # a small random BERT on a CPU: are words in order?
paceline fit classify-text preset=bert train=mrpc/train.jsonl val=mrpc/validation.jsonl
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from paceline import PacelineError, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.optimizers import has_fused_kernels
from paceline.recipes.data.hugging_face import TINY, ExportAtEnd, check_vocabulary, require_packages
from paceline.recipes.data.records import read_records
from paceline.recipes.data.tiny_models import (
    no_folder_too,
    shuffled,
    tiny_bert,
    tiny_conversations,
    tiny_tokenizer,
)
from paceline.schedules import Linear

Sample = tuple[str, str | None, str]
"""A text, its second text if there is one, and its label."""


KEYS = (
    ("text", None),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("sentence", None),
)
"""Names of the texts of a record, as the tasks of GLUE have them."""


class Config(RunConfig):
    """Settings of the recipe."""

    model: Annotated[str, BeforeValidator(no_folder_too)] = TINY
    """A name on the Hugging Face hub, a folder, or ``tiny``: a small random BERT."""
    train: Path | None = None
    """JSON or JSON lines with ``label``, and ``text`` or the names of one of GLUE's tasks."""
    val: Path | None = None
    """Likewise, to validate on."""
    length: PositiveInt = 128
    """The most tokens of a sample; what is longer is cut off."""
    batch_size: PositiveInt = 32
    """Samples on each device."""
    workers: NonNegativeInt = 0
    """Processes that read, for each rank."""
    epochs: PositiveInt = 3
    """Passes over the data."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """The highest; it falls linearly to 0."""
    warmup: Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = "10%"
    """The part of the run in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of AdamW."""


PRESETS: dict[str, dict[str, Any]] = {
    "bert": {"model": "bert-base-cased", "learning_rate": 2e-5, "trainer": {"precision": "bf16"}}
}


class Classifier(TrainModule):
    """Trains a sequence classifier with cross entropy; reports accuracy and F1.

    F1 is that of the label that comes last, as GLUE has it, or the mean over labels where there are more
    than two.

    Args:
        model: A name, a folder, or ``tiny``.
        labels: Their names, in order.
    """

    def __init__(
        self,
        model: str,
        labels: list[str],
        learning_rate: float = 1e-3,
        warmup: str = "10%",
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        from torchmetrics.classification import BinaryF1Score, MulticlassF1Score

        self.model = load_classifier(model, labels)
        several = len(labels) > 2
        self.f1: Any = MulticlassF1Score(len(labels), average="macro") if several else BinaryF1Score()

    def training_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._step(batch)

    def validation_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        found = self._step(batch, self.f1)
        self.log("f1", self.f1)
        return found

    def _step(self, batch: dict[str, Tensor], metric: Any = None) -> dict[str, Tensor]:
        labels = batch["labels"]
        logits = self.model(**{name: values for name, values in batch.items() if name != "labels"}).logits
        classes = logits.argmax(1)
        if metric is not None:
            metric.update(classes, labels)
        return {"loss": F.cross_entropy(logits, labels), "accuracy": (classes == labels).float().mean()}

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        settings = self.hparams
        optimizer = torch.optim.AdamW(
            self.parameters(),
            settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            fused=has_fused_kernels(self.device) or None,
        )
        return {"optimizer": optimizer, "lr_scheduler": Linear(warmup=settings["warmup"])}


def load_classifier(model: str, labels: list[str]) -> Any:
    """The model in training mode, with its weights on the CPU, and a new head."""
    if model == TINY:
        return tiny_bert(len(labels))
    from transformers import AutoModelForSequenceClassification

    names = dict(enumerate(labels))
    return AutoModelForSequenceClassification.from_pretrained(
        model, id2label=names, label2id={name: key for key, name in names.items()}
    ).train()


def sample_of(record: dict[str, Any]) -> Sample:
    """A record of a file.

    Example:
        >>> sample_of({"sentence1": "It rains.", "sentence2": "The sun shines.", "label": 0})
        ('It rains.', 'The sun shines.', '0')
    """
    if not isinstance(record["label"], str | int):
        raise TypeError(f"the label is a {type(record['label']).__name__}")
    label = str(record["label"])
    for first, second in KEYS:
        if first in record and (second is None or second in record):
            texts = record[first], None if second is None else record[second]
            if not all(isinstance(text, str | None) for text in texts) or texts[0] is None:
                raise TypeError(f"{first} is no text")
            return *texts, label
    raise KeyError("a text")


def labels_of(samples: Sequence[Sample]) -> list[str]:
    """All labels, in the order of numbers where they are numbers.

    Raises:
        PacelineError: for fewer than two labels, and for texts among pairs.
    """
    labels = {label for _, _, label in samples}
    if len(labels) < 2:
        raise PacelineError(
            "samples of fewer than two labels",
            code="records-unusable",
            got=", ".join(labels) or "no sample",
        )
    if len({second is None for _, second, _ in samples}) > 1:
        raise PacelineError("some samples are pairs of texts, and others are not", code="records-unusable")
    return sorted(labels, key=int if all(label.isdecimal() for label in labels) else None)


def in_order_or_not() -> tuple[list[Sample], list[Sample]]:
    """Paragraphs of Python's reference, and the same with their words in another order."""
    draw = random.Random(0)
    parts: list[list[Sample]] = []
    for conversations in tiny_conversations():
        parts.append([])
        for _, answer in conversations:
            text = answer["content"]
            parts[-1] += [(text, None, "in order"), (shuffled(text, draw), None, "shuffled")]
    return parts[0], parts[1]


def collate(samples: Sequence[Sample], tokenizer: Any, labels: list[str], length: int) -> dict[str, Tensor]:
    """Samples as a batch for the model, as wide as the longest, and ``labels`` (batch)."""
    first, second, names = zip(*samples, strict=True)
    pairs = (list(first),) if second[0] is None else (list(first), list(second))
    more = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    batch = dict(tokenizer(*pairs, **more))
    batch["labels"] = torch.tensor([labels.index(name) for name in names])
    return batch


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    require_packages("classify-text", "transformers", "torchmetrics")
    if (config.train is None) != (config.val is None):
        raise PacelineError(
            "classify-text takes train=FILE and val=FILE together, or neither", code="missing-argument"
        )
    if config.train is None or config.val is None:
        train, val = in_order_or_not()
    else:
        allowed = "label, and text, or the texts of one of GLUE's tasks: sentence1 and sentence2, say"
        train, val = (read_records(file, sample_of, allowed) for file in (config.train, config.val))
    labels = labels_of(train + val)
    if config.model == TINY:
        tokenizer = tiny_tokenizer()
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(config.model)
    trainer = config.make_trainer(
        name="classify-text",
        max_epochs=config.epochs,
        clip_grad_norm=1.0,
        callbacks=[Checkpoint(monitor="val/accuracy"), ExportAtEnd(tokenizer)],
    )
    torch.manual_seed(trainer.settings.seed)
    module = Classifier(config.model, labels, config.learning_rate, config.warmup, config.weight_decay)
    check_vocabulary(tokenizer, module.model, config.model)
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.workers,
        "collate_fn": partial(collate, tokenizer=tokenizer, labels=labels, length=config.length),
    }
    return Experiment(
        trainer,
        module,
        train=DataLoader(train, shuffle=True, **shared),  # type: ignore[arg-type]
        val=DataLoader(val, **shared),  # type: ignore[arg-type]
    )
