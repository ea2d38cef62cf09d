"""Pairs of answers of which one is preferred: read from files, and two rows of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from paceline.recipes.data.tiny_models import shuffled, tiny_conversations

Pair = tuple[Conversation, Conversation]
"""The same conversation with the chosen and with the rejected last answer."""


def read_pairs(file: Path) -> list[Pair]:
    """Read a JSON list or JSON lines, each record in one of three forms.

    Alpaca: ``instruction``, ``input``, ``chosen`` and ``rejected``. ShareGPT: ``conversations``, and a turn
    each in ``chosen`` and ``rejected``. Both are described in LLaMA-Factory's data/README.md. OpenAI:
    ``chosen`` and ``rejected`` are lists of messages, whole conversations or what follows ``prompt``.

    Raises:
        PacelineError: for a record of another form, with its number.
    """
    return read_records(
        file, pair_of, "chosen and rejected, beside instruction (Alpaca) or conversations (ShareGPT)"
    )


def pair_of(record: dict[str, Any]) -> Pair:
    """A record of a file as two conversations.

    Example:
        >>> pair_of({"instruction": "Add 1 and 2.", "chosen": "3", "rejected": "12"})[1][-1]
        {'role': 'assistant', 'content': '12'}
    """
    found = []
    for last in (record["chosen"], record["rejected"]):
        prompt = record.get("prompt")
        if "conversations" in record:
            whole = record | {"conversations": [*record["conversations"], last]}
        elif isinstance(last, str):
            whole = record | {"instruction": record.get("instruction", prompt), "output": last}
        else:
            before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
            whole = {"messages": [*before, *last], "system": record.get("system")}
        found.append(conversation_of(whole))
    if any(conversation[-1]["role"] != "assistant" or len(conversation) < 2 for conversation in found):
        raise ValueError("no prompt with an answer after it")
    return found[0], found[1]


def shuffled_pairs() -> tuple[list[Pair], list[Pair]]:
    """Paragraphs of ``tiny_conversations``, preferred to the same words in another order."""
    draw = random.Random(0)
    parts: list[list[Pair]] = []
    for conversations in tiny_conversations():
        parts.append([])
        for asked, answer in conversations:
            other = answer | {"content": shuffled(answer["content"], draw)}
            parts[-1].append(([asked, answer], [asked, other]))
    return parts[0], parts[1]


def encode_pair(tokenizer: Any, pair: Pair, length: int) -> tuple[Encoded, Encoded]:
    """Both conversations as tokens; the last answers alone are targets."""
    chosen, rejected = (encode_last(tokenizer, conversation, length) for conversation in pair)
    return chosen, rejected


class PairRows(Dataset[tuple[Encoded, Encoded]]):
    """Encoded pairs; ``left_out`` counts those that do not differ within their length.

    Args:
        pairs: The chosen and the rejected conversation of each.
    """

    def __init__(self, pairs: Sequence[tuple[Encoded, Encoded]]) -> None:
        self.pairs = [pair for pair in pairs if pair[0] != pair[1] and all(one.learns for one in pair)]
        self.left_out = len(pairs) - len(self.pairs)
        if not self.pairs:
            raise PacelineError("no pair has answers within its length", fix="a larger length")

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Encoded, Encoded]:
        return self.pairs[index]


def collate_pairs(pairs: Sequence[tuple[Encoded, Encoded]]) -> dict[str, dict[str, Tensor]]:
    """``collate`` of the chosen and of the rejected, rows of the same length."""
    rows = [[one] for part in zip(*pairs, strict=True) for one in part]
    both = collate(rows)
    chosen, rejected = ({name: part.chunk(2)[n] for name, part in both.items()} for n in (0, 1))
    return {"chosen": chosen, "rejected": rejected}
