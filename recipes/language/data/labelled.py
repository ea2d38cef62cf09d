"""Answers that are labelled good or bad: rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.language.data.loading import Kind
from paceline.recipes.language.data.pairs import shuffled_pairs
from paceline.recipes.language.data.rows import collate
from paceline.recipes.language.data.samples import LABELLED, Labelled, Reading
from paceline.recipes.language.data.templates import Encoded, Encoding
from paceline.recipes.networks.head_loss import IGNORED

EncodedAnswer = tuple[Encoded, bool]
"""An answer as tokens, and whether it is good."""


def shuffled_answers() -> tuple[list[Labelled], list[Labelled]]:
    """Paragraphs of ``tiny_conversations``, which are good, and the same words in another order."""
    train, val = (
        [Labelled(one, good) for pair in pairs for one, good in ((pair[0], True), (pair[1], False))]
        for pairs in shuffled_pairs()
    )
    return train, val


def encode_labelled(encoding: Encoding, one: Labelled) -> list[EncodedAnswer]:
    """An answer as tokens, with its label; none where it has nothing to learn within its length."""
    found = encoding.answer(one.sample)
    return [(found, one.is_good)] if found is not None and found.learns else []


class LabelledRows(Dataset[EncodedAnswer]):
    """Encoded answers with labels.

    Args:
        answers: At least one.
    """

    def __init__(self, answers: Sequence[EncodedAnswer]) -> None:
        self.answers = answers
        self.sizes = [len(one.tokens) for one, _ in answers]
        if not answers:
            raise PacelineError("no sample has an answer within its length", fix="a larger length")

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> EncodedAnswer:
        return self.answers[index]


def collate_labelled(answers: Sequence[EncodedAnswer], length: int) -> dict[str, Any]:
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


LABELLED_ANSWERS = Kind(
    Reading.labelled, LABELLED, encode_labelled, lambda one: [one[0]], LabelledRows, shuffled_answers
)
"""What ``kto`` is trained on."""
