"""Answers that are labelled good or bad, each with one to another question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from paceline import PacelineError
from paceline.recipes.language.data.loading import Kind
from paceline.recipes.language.data.pairs import shuffled_pairs
from paceline.recipes.language.data.rows import collate
from paceline.recipes.language.data.samples import LABELLED, Labelled, Reading
from paceline.recipes.language.data.templates import Encoded, Encoding
from paceline.recipes.networks.head_loss import IGNORED

EncodedAnswer = tuple[Encoded, bool]
"""An answer as tokens, and whether it is good."""
Compared = tuple[Encoded, bool, Encoded]
"""The same, and another answer."""


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
            raise PacelineError(
                "no sample has an answer within its length", code="samples-too-long", fix="a larger length"
            )

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> EncodedAnswer:
        return self.answers[index]


class WithOthers(Dataset[Compared]):
    """Labelled answers, each with another one: that of the index beside it, else the one before it.

    Args:
        rows: ``LabelledRows``, joined or mixed.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def set_epoch(self, epoch: int) -> None:
        """Be the samples of this epoch, where they are mixed."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __getitem__(self, index: int | tuple[int, int]) -> Compared:
        one, other = index if isinstance(index, tuple) else (index, (index - 1) % len(self.rows))
        return (*self.rows[one], self.rows[other][0])


class InSteps(Sampler[tuple[int, int]]):
    """Indices for ``WithOthers``: each with the one before it in its step, the first with the last.

    So neither micro-batches nor ranks change with which answer one is compared.

    Args:
        order: A sampler of at least two indices.
        step: How many there are in an optimizer step.

    Example:
        >>> [*InSteps(range(5), 3)]
        [(0, 2), (1, 0), (2, 1), (3, 4), (4, 3)]
    """

    def __init__(self, order: Any, step: int) -> None:
        self.order, self.step = order, step

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        left, before = iter(self.order), -1
        while part := list(islice(left, self.step)):
            last = part[-1] if len(part) > 1 else before
            yield from zip(part, [last, *part[:-1]], strict=True)
            before = part[-1]


def collate_labelled(answers: Iterable[Compared], length: int) -> dict[str, Any]:
    """``rows`` with their labels in ``is_good``, (rows), and ``others``: each prompt with the other answer.

    Args:
        answers: What ``WithOthers`` gives.
        length: The most tokens of a row.
    """
    rows, labels, others = zip(*answers, strict=True)
    swapped = [_joined(one, other, length) for one, other in zip(rows, others, strict=True)]
    both = collate([[one] for one in [*rows, *swapped]])
    first, second = ({name: part.chunk(2)[n] for name, part in both.items()} for n in (0, 1))
    return {"rows": first, "others": second, "is_good": torch.tensor(labels)}


def _joined(one: Encoded, other: Encoded, length: int) -> Encoded:
    """The prompt of one conversation with the answer of another."""
    begins = [next(n for n, target in enumerate(x.targets) if target != IGNORED) + 1 for x in (one, other)]
    tokens = one.tokens[: begins[0]] + other.tokens[begins[1] :]
    targets = one.targets[: begins[0] - 1] + tokens[begins[0] :]
    targets.append(IGNORED)
    tokens, targets = tokens[:length], targets[:length]
    targets[-1] = IGNORED
    return Encoded(tokens, targets, one.weight)


LABELLED_ANSWERS = Kind(
    Reading.labelled,
    LABELLED,
    encode_labelled,
    lambda one: [one[0]],
    LabelledRows,
    shuffled_answers,
    lambda one: (one, True),
)
"""What ``kto`` is trained on."""
