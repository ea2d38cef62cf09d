"""What a record of a file says: a conversation or a text, a pair of answers, or an answer with a label."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
"""``role`` (system, user, assistant, tool) and ``content``, and what else chat templates take, as
``tool_calls``."""
Form = Literal["messages", "sharegpt", "alpaca", "completion", "text"]
# fmt: off
Column = Literal[
    "messages", "conversations", "instruction", "input", "output", "history", "system", "tools", "text",
    "prompt", "completion", "chosen", "rejected", "label", "margin", "weight",
]
# fmt: on
SAMPLES = (
    "messages (OpenAI), conversations (ShareGPT), instruction and output (Alpaca), prompt and completion, "
    "or text; or columns: {instruction: THEIR NAME, output: THEIR NAME}"
)
PAIRS = "chosen and rejected, beside prompt, instruction (Alpaca) or conversations (ShareGPT), or alone"
LABELLED = "label (or kto_tag), true or false, beside a conversation or prompt and completion"
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function": "tool",
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
}
_BEFORE_USER = "assistant"
"""Who may not begin a conversation: such messages are skipped, for chat templates refuse them."""
_OF_MESSAGES = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")


@dataclass(frozen=True)
class Conversation:
    """Messages, which a chat template makes a text of.

    Args:
        messages: As chat templates take them.
        tools: What may be called, as JSON schemas; None: nothing.
        weight: What it counts in the loss.
        silent: Numbers of answers, among the messages, that are not learned.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    weight: float = 1.0
    silent: frozenset[int] = frozenset()

    def ends_with(self, *messages: Message) -> Conversation:
        """The same, and these messages after it."""
        return replace(self, messages=[*self.messages, *messages])


@dataclass(frozen=True)
class Text:
    """A text as it is, without a chat template.

    Args:
        prompt: What is not learned.
        completion: What follows, and is; the end of the text is learned too.
        weight: What it counts in the loss.
    """

    prompt: str
    completion: str
    weight: float = 1.0


Sample = Conversation | Text


class Pair(NamedTuple):
    """The same with the answer that is preferred, and with the other.

    Attributes:
        chosen: With the one.
        rejected: With the other.
        margin: By how much it is preferred, for reward models; None: not said.
    """

    chosen: Sample
    rejected: Sample
    margin: float | None = None


class Labelled(NamedTuple):
    """An answer, and whether it is good."""

    sample: Sample
    is_good: bool


@dataclass(frozen=True)
class Reading:
    """How the records of a source are read.

    Args:
        form: Of the samples; None: what the keys of a record say.
        columns: The names that records have, by ours.
        roles: Ours, by those that messages have, beside ``ROLES``.
        system: The system prompt of conversations that have none; None: none.
    """

    form: Form | None = None
    columns: Mapping[Column, str] | None = None
    roles: Mapping[str, str] | None = None
    system: str | None = None

    def sample(self, record: dict[str, Any]) -> Sample:
        r"""A record as a conversation or a text.

        Raises:
            KeyError: for a record without what its form has.
            TypeError: for a value of another type.
            ValueError: for a role or a value that is not known.

        Example:
            >>> Reading().sample({"instruction": "Add.", "input": "1 2", "output": "3"}).messages
            [{'role': 'user', 'content': 'Add.\n1 2'}, {'role': 'assistant', 'content': '3'}]
            >>> Reading().sample({"prompt": "1 + 2 =", "completion": " 3"})
            Text(prompt='1 + 2 =', completion=' 3', weight=1.0)
        """
        record = self._renamed(record)
        found = self._sample(record, self.form or _form_of(record))
        if isinstance(found, Conversation) and not any(_is_answer(one) for one in found.messages):
            raise ValueError("no answer: no message of the assistant")
        return found

    def pair(self, record: dict[str, Any]) -> Pair:
        """A record as two answers to the same.

        Raises:
            KeyError, TypeError, ValueError: as of ``sample``.

        Example:
            >>> pair = {"instruction": "Add 1 and 2.", "chosen": "3", "rejected": "12"}
            >>> Reading().pair(pair).rejected.messages[-1]
            {'role': 'assistant', 'content': '12'}
            >>> Reading().pair({"chosen": "1 + 2 = 3", "rejected": "1 + 2 = 12"})[0]
            Text(prompt='1 + 2 =', completion=' 3', weight=1.0)
        """
        record = self._renamed(record, "weight")
        answers = record["chosen"], record["rejected"]
        margin = record.get("margin")
        if margin is not None and not isinstance(margin, (int, float)):
            raise TypeError(f"a margin is a number, and this one is {margin!r}")
        if all(isinstance(one, str) for one in answers) and not {"instruction", "conversations"} & {
            *record
        }:
            prompt = record.get("prompt")
            texts = _with_prompt(*answers) if prompt is None else [(prompt, one) for one in answers]
            chosen, rejected = (_text(asked, answer, record) for asked, answer in texts)
            return Pair(chosen, rejected, margin)
        ended, other = (_answered(self._ending(record, one)) for one in answers)
        return Pair(ended, other, margin)

    def labelled(self, record: dict[str, Any]) -> Labelled:
        """A record as an answer and its label.

        Raises:
            KeyError, TypeError, ValueError: as of ``sample``.

        Example:
            >>> Reading().labelled({"prompt": "1 + 2 =", "completion": " 12", "label": False}).is_good
            False
        """
        record = self._renamed(record, "weight")
        label = record["label"] if "label" in record else record["kto_tag"]
        if not isinstance(label, bool):
            raise TypeError(f"a label is true or false, and this one is {label!r}")
        found = self._sample(record, self.form or _form_of(record))
        return Labelled(found if isinstance(found, Text) else _answered(found), label)

    def _renamed(self, record: dict[str, Any], *dropped: str) -> dict[str, Any]:
        columns = self.columns or {}
        if columns and not set(columns.values()) & set(record):
            named, has = (", ".join(map(repr, one)) for one in (columns.values(), record))
            raise ValueError(f"columns names {named}, and it has {has}")
        ours = {our: record[their] for our, their in columns.items() if their in record}
        return {name: value for name, value in record.items() if name not in (*columns, *dropped)} | ours

    def _sample(self, record: dict[str, Any], form: str) -> Sample:
        if form == "text":
            return _text("", record["text"], record)
        if form == "completion":
            prompt, completion = record["prompt"], record["completion"]
            if isinstance(completion, str):
                return _text(prompt, completion, record)
            return self._conversation(record, [*_asked(prompt), *completion])
        if form in ("messages", "sharegpt"):
            return self._conversation(record, record["messages" if form == "messages" else "conversations"])
        return self._conversation(record, _alpaca(record, record["output"]))

    def _ending(self, record: dict[str, Any], answer: Any) -> Conversation:
        """A conversation with one of its last answers."""
        if "conversations" in record:
            answer = {"from": "gpt", "value": answer} if isinstance(answer, str) else answer
            return self._conversation(record, [*record["conversations"], answer])
        if isinstance(answer, str):
            return self._conversation(record, _alpaca(record, answer))
        answer = [answer] if isinstance(answer, dict) else answer
        begins = next((one for one in answer if isinstance(one, dict)), None)
        if begins is not None and self._turn(begins)[0]["role"] != _BEFORE_USER:  # it has the prompt too
            return self._conversation(record, answer)
        return self._conversation(record, [*_asked(record.get("prompt")), *answer])

    def _conversation(self, record: dict[str, Any], given: Any) -> Conversation:
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise TypeError(f"messages are a list of mappings, and these are {_short(given)}")
        turns = [self._turn(one) for one in given]
        first = next((n for n, (one, _) in enumerate(turns) if one["role"] != _BEFORE_USER), 0)
        turns = turns[first:]
        system = record.get("system") or self.system
        if system and not any(one["role"] in ("system", "developer") for one, _ in turns):
            turns.insert(0, ({"role": "system", "content": system}, True))
        elif record.get("system"):
            turns[0] = ({"role": "system", "content": record["system"]}, True)
        silent = frozenset(n for n, (_, learns) in enumerate(turns) if not learns)
        return Conversation([one for one, _ in turns], _tools(record.get("tools")), _weight(record), silent)

    def _turn(self, given: dict[str, Any]) -> tuple[Message, bool]:
        """A message, and whether it is learned, if it is an answer."""
        of_sharegpt = "from" in given
        named = given["from" if of_sharegpt else "role"]
        role = (self.roles or {}).get(named) or ROLES.get(named)
        if role is None:
            raise ValueError(f"the role {named!r}; roles: {{{named}: user}} says what it is")
        content = given.get("value" if of_sharegpt else "content")
        message: Message = {"role": role, "content": _content(content, "tool_calls" in given)}
        message |= {name: given[name] for name in _OF_MESSAGES if given.get(name)}
        if named == "function_call":
            message |= {"content": "", "tool_calls": _loaded(content, "a function call")}
        if "tool_calls" in message:
            message["tool_calls"] = [_call(one) for one in _listed(message["tool_calls"])]
        learns = given.get("weight", given.get("train", given.get("training", True)))
        if learns not in (0, 1):
            raise ValueError(f"the weight of a message is 0 or 1, and this one is {learns!r}")
        return message, bool(learns)


def _form_of(record: Mapping[str, Any]) -> Form:
    if "messages" in record:
        return "messages"
    if "conversations" in record:
        return "sharegpt"
    if "completion" in record:
        return "completion"
    if "instruction" in record or "output" in record:
        return "alpaca"
    if "text" not in record:
        pairs = "; pairs of answers are for dpo and reward-model" if "chosen" in record else ""
        raise ValueError(f"no form of a sample has just the keys {', '.join(record)}{pairs}")
    return "text"


def _alpaca(record: Mapping[str, Any], answer: Any) -> list[Message]:
    asked = record["instruction"] if "instruction" in record else record["prompt"]
    if record.get("input"):
        asked = f"{asked}\n{record['input']}"
    pairs = [*(record.get("history") or []), (asked, answer)]
    return [
        {"role": role, "content": content}
        for pair in pairs
        for role, content in zip(("user", "assistant"), pair, strict=True)
    ]


def _answered(conversation: Conversation) -> Conversation:
    messages = conversation.messages
    if len(messages) < 2 or not _is_answer(messages[-1]):
        raise ValueError("no prompt with an answer after it")
    return conversation


def _is_answer(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def _asked(prompt: Any) -> list[Message]:
    if prompt is None:
        return []
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _text(prompt: Any, completion: Any, record: Mapping[str, Any]) -> Text:
    for value in (prompt, completion):
        if not isinstance(value, str):
            raise TypeError(f"a text is a string, and this one is {_short(value)}")
    if not completion.strip():
        raise ValueError("the text is empty")
    return Text(prompt, completion, _weight(record))


def _with_prompt(*answers: str) -> list[tuple[str, str]]:
    """Two whole texts as what they begin with, up to a space, and the rest of each."""
    shared = "".join(
        one for one, other in takewhile(lambda both: both[0] == both[1], zip(*answers, strict=False))
    )
    cut = len(shared) if shared in answers else max(shared.rfind(" "), shared.rfind("\n"), 0)
    return [(one[:cut], one[cut:]) for one in answers]


def _content(content: Any, may_be_none: bool) -> str:
    if content is None and may_be_none:
        return ""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        kinds = {part.get("type") for part in parts} - {"text"}
        if len(parts) < len(content) or kinds:
            raise TypeError(f"a message has {', '.join(sorted(map(str, kinds)))}: text alone is trained on")
        return "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise TypeError(f"the content of a message is {_short(content)}")
    return content


def _weight(record: Mapping[str, Any]) -> float:
    weight = record.get("weight", 1.0)
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of a sample is a number from 0 on, and this one is {weight!r}")
    return float(weight)


def _tools(given: Any) -> list[Any] | None:
    if not given:
        return None
    found = _listed(_loaded(given, "tools") if isinstance(given, str) else given)
    return [one if "function" in one else {"type": "function", "function": one} for one in found] or None


def _call(given: Any) -> dict[str, Any]:
    """A call of a tool, its arguments as a mapping, which templates write as they need it."""
    function = given.get("function", given) if isinstance(given, dict) else {}
    if "name" not in function:
        raise ValueError(f"a call of a tool has no name: {_short(given)}")
    arguments = function.get("arguments", {})
    arguments = _loaded(arguments, "the arguments of a call") if isinstance(arguments, str) else arguments
    more = {"id": given["id"]} if "id" in given else {}
    return {"type": "function", **more, "function": {"name": function["name"], "arguments": arguments}}


def _loaded(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, TypeError):
        raise ValueError(f"{what} is no JSON: {_short(text)}") from None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _short(value: Any) -> str:
    text = repr(value)
    kind = type(value).__name__
    named = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return named if len(text) > 60 else f"{text}, {named}"
