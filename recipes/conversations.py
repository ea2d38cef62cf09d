"""Conversations for instruction tuning: read from files, rendered by a chat template, packed into rows."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.text import IGNORED

T = TypeVar("T")
Conversation = list[dict[str, str]]
"""Messages with ``role`` (system, user, assistant, tool) and ``content``, as chat templates take them."""
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    **{role: role for role in ("system", "user", "assistant", "tool")},
}


def read_conversations(file: Path) -> list[Conversation]:
    """Read a JSON list or JSON lines, each record in one of three forms.

    Alpaca: ``instruction``, ``input``, ``output``, and where there are such ``system`` and ``history``
    (pairs); the input follows the instruction on a new line. ShareGPT: ``conversations`` of ``from`` and
    ``value``, and ``system``. OpenAI: ``messages`` of ``role`` and ``content``. The first two are described
    in LLaMA-Factory's data/README.md.

    Raises:
        PacelineError: for a record of another form, with its number.
    """
    return read_records(
        file, conversation_of, "instruction and output (Alpaca), conversations (ShareGPT), or messages"
    )


def read_records(file: Path, parse: Callable[[dict[str, Any]], T], allowed: str) -> list[T]:
    """What ``parse`` makes of each record of a JSON list or of JSON lines.

    Args:
        file: To read.
        parse: Called with a mapping; it raises KeyError, TypeError or ValueError for one of another form.
        allowed: The forms, for the error.

    Raises:
        PacelineError: for a record of another form, with its number.
    """
    text = file.expanduser().read_text()
    try:
        is_list = text.lstrip()[:1] == "["
        lines = (line for line in text.splitlines() if line.strip())
        records = json.loads(text) if is_list else [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise PacelineError(f"{file} is no JSON: {error}") from None
    found = []
    for number, record in enumerate(records, 1):
        try:
            if not isinstance(record, dict):
                raise TypeError(f"a {type(record).__name__}")
            found.append(parse(record))
        except (KeyError, TypeError, ValueError) as error:
            raise PacelineError(
                f"record {number} of {file} has another form",
                got=f"{error}, in {str(record)[:200]}",
                allowed=allowed,
            ) from None
    return found


def split_off(items: list[T], part: float) -> tuple[list[T], list[T]]:
    """All but the last ``part`` of them, and these; at least one.

    Example:
        >>> split_off([1, 2, 3, 4], 0.25)
        ([1, 2, 3], [4])
    """
    count = max(1, round(part * len(items)))
    return items[:-count], items[-count:]


def conversation_of(record: dict[str, Any]) -> Conversation:
    r"""A record of a file as messages.

    Example:
        >>> conversation_of({"instruction": "Add.", "input": "1 2", "output": "3"})
        [{'role': 'user', 'content': 'Add.\n1 2'}, {'role': 'assistant', 'content': '3'}]
    """
    if "messages" in record:
        turns = [(message["role"], message["content"]) for message in record["messages"]]
    elif "conversations" in record:
        turns = [(message["from"], message["value"]) for message in record["conversations"]]
    else:
        pairs = [*(record.get("history") or []), (_instruction(record), record["output"])]
        turns = [turn for asked, answer in pairs for turn in (("human", asked), ("gpt", answer))]
    if record.get("system"):
        turns.insert(0, ("system", record["system"]))
    unknown = {role for role, _ in turns} - set(ROLES)
    if unknown:
        raise ValueError(f"the role {min(unknown)!r}")
    if not any(ROLES[role] == "assistant" for role, _ in turns):
        raise ValueError("no answer")
    return [{"role": ROLES[role], "content": content} for role, content in turns]


def _instruction(record: dict[str, Any]) -> str:
    given = record.get("input")
    return f"{record['instruction']}\n{given}" if given else str(record["instruction"])


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens, and what each of them is to predict.

    Args:
        tokens: Of the whole conversation.
        targets: The next token where that is part of an answer, else ``IGNORED``.
    """

    tokens: list[int]
    targets: list[int]


def encode(tokenizer: Any, conversation: Conversation, length: int) -> Encoded:
    """Render a conversation by the tokenizer's chat template, cut off after ``length`` tokens.

    Part of an answer is what the template adds for a message of the assistant, its end token included.

    Raises:
        PacelineError: for a tokenizer without a chat template, without offsets, and for a template that
            renders the beginning of a conversation differently when it continues.
    """
    if not tokenizer.chat_template or not tokenizer.is_fast:
        raise PacelineError(
            "the tokenizer has no chat template" if tokenizer.is_fast else "the tokenizer gives no offsets",
            fix="chat_template=FILE, of Jinja"
            if tokenizer.is_fast
            else "a fast tokenizer (tokenizer.json)",
        )
    text = _render(tokenizer, conversation)
    answers = []
    for number, message in enumerate(conversation):
        if message["role"] == "assistant":
            before = _render(tokenizer, conversation[:number], add_generation_prompt=True)
            after = _render(tokenizer, conversation[: number + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise PacelineError(
                    "the chat template renders earlier messages differently when a conversation continues",
                    fix="a chat_template that only appends, or conversations with one answer",
                )
            answers.append(range(len(before), len(after)))
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = found["input_ids"]
    learned = [  # a token may begin with the space before an answer
        any(begin < answer.stop and end > answer.start for answer in answers)
        for begin, end in found["offset_mapping"]
    ]
    following = zip(tokens[1:], learned[1:], strict=True)
    targets = [token if is_learned else IGNORED for token, is_learned in following] + [IGNORED]
    return Encoded(tokens[:length], [*targets[:length][:-1], IGNORED])


def _render(tokenizer: Any, conversation: Conversation, **more: Any) -> str:
    text: str = tokenizer.apply_chat_template(conversation, tokenize=False, **more)
    return text


def pack(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which items share a row of ``length``: the longest first, each where it leaves least room.

    Example:
        >>> pack([3, 5, 2, 4], 7)
        [[1, 2], [3, 0]]
    """
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # what is left in a row, and its number; sorted
    for item in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        place = bisect_left(rooms, (sizes[item], 0))
        if place == len(rooms):
            rows.append([])
            room, row = length, len(rows) - 1
        else:
            room, row = rooms.pop(place)
        rows[row].append(item)
        insort(rooms, (room - sizes[item], row))
    return rows


class ConversationRows(Dataset[list[Encoded]]):
    """Conversations that learn something, one in each row or packed.

    Args:
        conversations: Encoded, none longer than ``length``.
        length: Tokens in a packed row; 0 for one conversation in each.
    """

    def __init__(self, conversations: Sequence[Encoded], length: int = 0) -> None:
        self.conversations = [one for one in conversations if set(one.targets) != {IGNORED}]
        sizes = [len(one.tokens) for one in self.conversations]
        self.rows = pack(sizes, length) if length else [[item] for item in range(len(sizes))]
        if not self.rows:
            raise PacelineError("no conversation has an answer within its length", fix="a larger length")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Encoded]:
        return [self.conversations[item] for item in self.rows[index]]


def collate(rows: Sequence[list[Encoded]], length: int = 0) -> dict[str, Tensor]:
    """Rows as int64 tensors (rows, length): ``input_ids``, ``targets``, ``position_ids``.

    Positions begin anew with each conversation, and with what fills a row up. Models of transformers keep
    such sequences apart where they get ``position_ids``, no ``attention_mask``, and ``use_cache=False``.

    Args:
        rows: What ``ConversationRows`` gives.
        length: Of each row; 0: of the longest.
    """
    length = length or max(sum(len(one.tokens) for one in row) for row in rows)
    tokens, positions = torch.zeros(2, len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for number, row in enumerate(rows):
        begin = 0
        for one in row:
            its = slice(begin, begin := begin + len(one.tokens))
            tokens[number, its] = torch.tensor(one.tokens)
            targets[number, its] = torch.tensor(one.targets)
            positions[number, its] = torch.arange(len(one.tokens))
        positions[number, begin:] = torch.arange(length - begin)
    return {"input_ids": tokens, "targets": targets, "position_ids": positions}
