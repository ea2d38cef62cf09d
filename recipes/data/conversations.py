"""Conversations for instruction tuning: read from files, rendered by a chat template, packed into rows."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.networks.document_attention import starts_of
from paceline.recipes.networks.head_loss import IGNORED

T = TypeVar("T")
C = TypeVar("C")
Conversation = list[dict[str, str]]
"""Messages with ``role`` (system, user, assistant, tool) and ``content``, as chat templates take them."""
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    **{role: role for role in ("system", "user", "assistant", "tool")},
}


BEFORE_USER = ("gpt", "assistant")
"""Who may not begin a conversation: such messages are skipped, for chat templates refuse them."""


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
    found = []
    for number, record in _records(file):
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


def _records(file: Path) -> Iterator[tuple[int, Any]]:
    try:
        text = file.expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PacelineError(f"{file} cannot be read: {error.strerror}") from None
    number = 1
    try:
        if text.lstrip()[:1] == "[":
            yield from enumerate(json.loads(text), 1)
            return
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, json.loads(line)
    except json.JSONDecodeError as error:
        raise PacelineError(
            f"{file} is no JSON, nor is each of its lines: line {number}: {error}"
        ) from None


def split_off(items: list[T], part: float) -> tuple[list[T], list[T]]:
    """All but the last ``part`` of them, and these; at least one.

    Raises:
        PacelineError: for fewer than two.

    Example:
        >>> split_off([1, 2, 3, 4], 0.25)
        ([1, 2, 3], [4])
    """
    if len(items) < 2:
        raise PacelineError(f"{len(items)} records are too few to train and to validate on")
    count = max(1, round(part * len(items)))
    return items[:-count], items[-count:]


def conversation_of(record: dict[str, Any]) -> Conversation:
    r"""A record of a file as messages.

    Example:
        >>> conversation_of({"instruction": "Add.", "input": "1 2", "output": "3"})
        [{'role': 'user', 'content': 'Add.\n1 2'}, {'role': 'assistant', 'content': '3'}]
    """
    if "messages" in record:
        turns = [_turn(message, "role", "content") for message in record["messages"]]
    elif "conversations" in record:
        turns = [_turn(message, "from", "value") for message in record["conversations"]]
    else:
        asked = record["instruction"]
        if record.get("input"):
            asked = f"{asked}\n{record['input']}"
        pairs = [*(record.get("history") or []), (asked, record["output"])]
        turns = [turn for pair in pairs for turn in zip(("human", "gpt"), pair, strict=True)]
    first = next((number for number, (role, _) in enumerate(turns) if role not in BEFORE_USER), 0)
    turns = turns[first:]
    if record.get("system"):
        turns.insert(0, ("system", record["system"]))
    for role, content in turns:
        if role not in ROLES:
            raise ValueError(f"the role {role!r}")
        if not isinstance(content, str):
            raise TypeError(f"the content of a message is a {type(content).__name__}")
    if not any(ROLES[role] == "assistant" for role, _ in turns):
        raise ValueError("no answer")
    return [{"role": ROLES[role], "content": content} for role, content in turns]


def _turn(message: dict[str, Any], role: str, content: str) -> tuple[str, Any]:
    if message.get("tool_calls") or message.get("weight", 1) != 1:
        raise ValueError("tool calls and weights of messages, which are not supported")
    return message[role], message[content]


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens, and what each of them is to predict.

    Args:
        tokens: Of the whole conversation.
        targets: The next token where that is part of an answer, else ``IGNORED``.
    """

    tokens: array[int]
    targets: array[int]

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn."""
        return any(target != IGNORED for target in self.targets)


def encode(tokenizer: Any, conversation: Conversation, length: int) -> list[Encoded]:
    """Render a conversation by the tokenizer's chat template, cut off after ``length`` tokens.

    Part of an answer is what the template adds for a message of the assistant, its end token included.
    Where the template renders earlier messages differently when a conversation continues (as Qwen3's does,
    which leaves earlier thoughts out), there is a row for each answer; else one for all.

    Raises:
        PacelineError: for a tokenizer without a chat template or offsets, and a template that refuses the
            conversation or renders an answer differently from the prompt for it.
    """
    ends = [number for number, one in enumerate(conversation, 1) if one["role"] == "assistant"]
    answers = [answer_in(tokenizer, conversation[:end]) for end in ends]
    is_last = ends[-1] == len(conversation)
    whole = answers[-1][0] if is_last else _render(tokenizer, conversation)
    if all(whole.startswith(text) for text, _ in answers):
        return [_tokens(tokenizer, whole, [place for _, place in answers], length)]
    return [_tokens(tokenizer, text, [place], length) for text, place in answers]


def encode_last(tokenizer: Any, conversation: Conversation, length: int) -> Encoded:
    """The same of a conversation that ends with an answer, of which that answer alone is learned."""
    text, place = answer_in(tokenizer, conversation)
    return _tokens(tokenizer, text, [place], length)


def answer_in(tokenizer: Any, conversation: Conversation) -> tuple[str, range]:
    """The text of a conversation that ends with an answer, and where that is in it.

    Raises:
        PacelineError: without a chat template or offsets, and where the template does not begin an answer
            with the prompt for it.
    """
    if not tokenizer.chat_template or not tokenizer.is_fast:
        raise PacelineError(
            "the tokenizer has no chat template" if tokenizer.is_fast else "the tokenizer gives no offsets",
            fix="chat_template=FILE, of Jinja"
            if tokenizer.is_fast
            else "a fast tokenizer (tokenizer.json)",
        )
    before = _render(tokenizer, conversation[:-1], add_generation_prompt=True)
    text = _render(tokenizer, conversation)
    if not text.startswith(before):
        raise PacelineError(
            "the chat template renders an answer differently from the prompt for it",
            got=f"{text[-200:]!r} after the prompt {before[-200:]!r}",
            fix="chat_template=FILE: one that begins an answer with what add_generation_prompt adds",
        )
    return text, range(len(before), len(text))


def _tokens(tokenizer: Any, text: str, answers: list[range], length: int) -> Encoded:
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = found["input_ids"]
    learned = [  # a token may begin with the space before an answer
        any(begin < answer.stop and end > answer.start for answer in answers)
        for begin, end in found["offset_mapping"]
    ]
    following = zip(tokens[1:], learned[1:], strict=True)
    targets = [token if is_learned else IGNORED for token, is_learned in following] + [IGNORED]
    return Encoded(array("i", tokens[:length]), array("i", [*targets[:length][:-1], IGNORED]))


def _render(tokenizer: Any, conversation: Conversation, **more: Any) -> str:
    try:
        text: str = tokenizer.apply_chat_template(conversation, tokenize=False, **more)
    except Exception as error:  # of Jinja, which raise_exception of a template raises too
        raise PacelineError(f"the chat template refuses a conversation: {error}") from None
    return text


def encode_all(
    tokenizer: Any, conversations: Sequence[C], length: int, encoded: Callable[[Any, C, int], T]
) -> list[T]:
    """``encoded(tokenizer, conversation, length)`` of each; errors say which it was.

    Raises:
        PacelineError: as ``encoded`` does.
    """
    found = []
    for number, conversation in enumerate(conversations, 1):
        try:
            found.append(encoded(tokenizer, conversation, length))
        except PacelineError as error:
            raise PacelineError(f"conversation {number}: {error}") from None
    return found


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
    """Conversations that learn something, one in each row or packed; ``left_out`` counts the others.

    Args:
        conversations: Encoded, none longer than ``length``.
        length: Tokens in a packed row; 0 for one conversation in each.
    """

    def __init__(self, conversations: Sequence[Encoded], length: int = 0) -> None:
        self.conversations = [one for one in conversations if one.learns]
        self.left_out = len(conversations) - len(self.conversations)
        sizes = [len(one.tokens) for one in self.conversations]
        self.rows = pack(sizes, length) if length else [[item] for item in range(len(sizes))]
        if not self.rows:
            raise PacelineError("no conversation has an answer within its length", fix="a larger length")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[Encoded]:
        return [self.conversations[item] for item in self.rows[index]]


def collate(rows: Sequence[list[Encoded]], length: int = 0) -> dict[str, Tensor]:
    """Rows as int64 tensors (rows, length): ``input_ids``, ``targets``, ``position_ids``; and ``starts``.

    Positions restart at 0 with each conversation, and with what fills a row up; ``starts`` says where, as
    ``starts_of`` gives it. Models of transformers keep such sequences apart by their positions too, where
    they get no ``attention_mask``, and ``use_cache=False``.

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
            tokens[number, its] = torch.frombuffer(one.tokens, dtype=torch.int32)
            targets[number, its] = torch.frombuffer(one.targets, dtype=torch.int32)
            positions[number, its] = torch.arange(len(one.tokens))
        positions[number, begin:] = torch.arange(length - begin)
    starts = starts_of((positions == 0).cumsum(1))
    return {"input_ids": tokens, "targets": targets, "position_ids": positions, "starts": starts}
