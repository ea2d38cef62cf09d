"""Answers that are labelled good or bad: read from files, and rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.data.conversations import (
    Conversation,
    Encoded,
    collate,
    conversation_of,
    encode_last,
    read_records,
)
from paceline.recipes.data.preferences import shuffled_pairs
from paceline.recipes.networks.head_loss import IGNORED

Labelled = tuple[Conversation, bool]
"""A conversation, and whether its last answer is good."""


def read_labelled(file: Path) -> list[Labelled]:
    """Read a JSON list or JSON lines of conversations in any form, each with ``label`` or ``kto_tag``.

    Also ``prompt``, ``completion`` and ``label``, as TRL has them: texts, or lists of messages.

    Raises:
        PacelineError: for a record of another form, with its number.
    """
    return read_records(
        file,
        labelled_of,
        "label (or kto_tag), true or false, beside a conversation or prompt and completion",
    )


def labelled_of(record: dict[str, Any]) -> Labelled:
    """A record of a file as a conversation and its label.

    Example:
        >>> labelled_of({"prompt": "Add 1 and 2.", "completion": "12", "label": False})[1]
        False
    """
    label = record["label"] if "label" in record else record["kto_tag"]
    if not isinstance(label, bool):
        raise TypeError(f"a label is true or false, and this one is {label!r}")
    if "completion" in record:
        prompt, answer = record["prompt"], record["completion"]
        if isinstance(answer, str):
            record = record | {"instruction": prompt, "output": answer}
        else:
            before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            record = record | {"messages": [*before, *answer]}
    conversation = conversation_of(record)
    if conversation[-1]["role"] != "assistant" or len(conversation) < 2:
        raise ValueError("no prompt with an answer after it")
    return conversation, label


def shuffled_answers() -> tuple[list[Labelled], list[Labelled]]:
    """Paragraphs of ``tiny_conversations``, which are good, and the same words in another order."""
    train, val = (
        [(one, good) for pair in pairs for one, good in zip(pair, (True, False), strict=True)]
        for pairs in shuffled_pairs()
    )
    return train, val


def encode_labelled(tokenizer: Any, one: Labelled, length: int) -> tuple[Encoded, bool]:
    """A conversation as tokens, of which the last answer is learned, and its label."""
    return encode_last(tokenizer, one[0], length), one[1]


class LabelledRows(Dataset[tuple[Encoded, bool]]):
    """Encoded answers with labels; ``left_out`` counts those that have none within their length.

    Args:
        answers: With their conversations and labels.
    """

    def __init__(self, answers: Sequence[tuple[Encoded, bool]]) -> None:
        self.answers = [one for one in answers if one[0].learns]
        self.left_out = len(answers) - len(self.answers)
        if not self.answers:
            raise PacelineError("no conversation has an answer within its length", fix="a larger length")

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> tuple[Encoded, bool]:
        return self.answers[index]


def collate_labelled(answers: Sequence[tuple[Encoded, bool]], length: int) -> dict[str, Any]:
    """``rows`` with their labels in ``is_good``, (rows), and ``others``: each prompt with another's answer.

    Args:
        answers: What ``LabelledRows`` gives; at least two.
        length: The most tokens of a row.

    Raises:
        PacelineError: for one answer alone, which has no other.
    """
    if len(answers) < 2:
        raise PacelineError(
            "kto compares an answer with one to another question: a micro-batch has at least two",
            fix="batch_size=2 or more, and no incomplete batch of one",
        )
    rows = [encoded for encoded, _ in answers]
    others = [_joined(one, other, length) for one, other in zip(rows, [rows[-1], *rows[:-1]], strict=True)]
    both = collate([[one] for one in [*rows, *others]])
    first, second = ({name: part.chunk(2)[n] for name, part in both.items()} for n in (0, 1))
    labels: Tensor = torch.tensor([good for _, good in answers])
    return {"rows": first, "others": second, "is_good": labels}


def _joined(one: Encoded, other: Encoded, length: int) -> Encoded:
    """The prompt of one conversation with the answer of another."""
    begins = [next(n for n, target in enumerate(x.targets) if target != IGNORED) + 1 for x in (one, other)]
    tokens = one.tokens[: begins[0]] + other.tokens[begins[1] :]
    targets = one.targets[: begins[0] - 1] + tokens[begins[0] :]
    targets.append(IGNORED)
    tokens, targets = tokens[:length], targets[:length]
    targets[-1] = IGNORED
    return Encoded(tokens, targets)
