"""Pairs of answers of which one is preferred: two rows of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.data.tiny_models import shuffled, tiny_conversations
from paceline.recipes.language.data.loading import Kind
from paceline.recipes.language.data.rows import collate
from paceline.recipes.language.data.samples import PAIRS, Conversation, Pair, Reading
from paceline.recipes.language.data.templates import Encoded, Encoding


class EncodedPair(NamedTuple):
    """A pair as tokens.

    Attributes:
        chosen: With the answer that is preferred.
        rejected: With the other.
        margin: By how much it is preferred; None: not said.
    """

    chosen: Encoded
    rejected: Encoded
    margin: float | None = None


def encode_pair(encoding: Encoding, pair: Pair) -> list[EncodedPair]:
    """A pair as tokens, of which the last answers are learned; none where they do not differ."""
    chosen, rejected = encoding.answer(pair.chosen), encoding.answer(pair.rejected)
    if chosen is None or rejected is None or not (chosen.learns and rejected.learns):
        return []
    if chosen.tokens == rejected.tokens:
        return []
    return [EncodedPair(chosen, rejected, pair.margin)]


class PairRows(Dataset[EncodedPair]):
    """Encoded pairs.

    Args:
        pairs: At least one.
    """

    def __init__(self, pairs: Sequence[EncodedPair]) -> None:
        self.pairs = pairs
        self.sizes = [max(len(one.chosen.tokens), len(one.rejected.tokens)) for one in pairs]
        if not pairs:
            raise PacelineError(
                "no pair has answers that differ within its length",
                code="samples-too-long",
                fix="a larger length",
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> EncodedPair:
        return self.pairs[index]


def collate_pairs(pairs: Sequence[EncodedPair]) -> dict[str, dict[str, Tensor] | Tensor]:
    """``collate`` of the chosen and of the rejected, rows of the same length; and ``margins``, if any."""
    rows = [[one] for part in ("chosen", "rejected") for one in (getattr(pair, part) for pair in pairs)]
    both = collate(rows)
    found: dict[str, dict[str, Tensor] | Tensor] = {
        side: {name: part.chunk(2)[n] for name, part in both.items()}
        for n, side in enumerate(("chosen", "rejected"))
    }
    if any(pair.margin is not None for pair in pairs):
        found["margins"] = torch.tensor([pair.margin or 0.0 for pair in pairs])
    return found


def shuffled_pairs() -> tuple[list[Pair], list[Pair]]:
    """Paragraphs of ``tiny_conversations``, preferred to the same words in another order."""
    draw = random.Random(0)
    parts: list[list[Pair]] = []
    for conversations in tiny_conversations():
        parts.append([])
        for asked, answer in conversations:
            other = answer | {"content": shuffled(answer["content"], draw)}
            parts[-1].append(Pair(Conversation([asked, answer]), Conversation([asked, other])))
    return parts[0], parts[1]


PAIRS_OF_ANSWERS = Kind(
    Reading.pair,
    PAIRS,
    encode_pair,
    lambda pair: [pair.chosen, pair.rejected],
    PairRows,
    shuffled_pairs,
    lambda one: EncodedPair(one, one),
)
"""What ``dpo`` and ``reward-model`` are trained on."""
