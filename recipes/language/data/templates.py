"""Samples as tokens: rendered by a chat template, and what of them is learned."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline import PacelineError
from paceline.recipes.language.data.samples import Conversation, Sample, Text
from paceline.recipes.networks.head_loss import IGNORED

TrainOn = Literal["answers", "last", "all"]
TooLong = Literal["cut", "drop", "error"]


@dataclass(frozen=True)
class Encoded:
    """A sample as tokens, and what each of them is to predict.

    Args:
        tokens: Of the whole sample.
        targets: The next token where that is learned, else ``IGNORED``.
        weight: What it counts in the loss.
        cut: How many tokens were cut off its end.
    """

    tokens: array[int]
    targets: array[int]
    weight: float = 1.0
    cut: int = 0

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn."""
        return any(target != IGNORED for target in self.targets)


@dataclass(frozen=True)
class Encoding:
    """How samples become tokens.

    Args:
        tokenizer: Of transformers, a fast one.
        length: The most tokens of a sample.
        train_on: ``"answers"``: what the template adds for each message of the assistant, with the token
            that ends it. ``"last"``: of the last one. ``"all"``: every token.
        too_long: What longer samples are: ``"cut"`` off, dropped, or an ``"error"``.
    """

    tokenizer: Any
    length: int
    train_on: TrainOn = "answers"
    too_long: TooLong = "cut"

    def rows(self, sample: Sample) -> list[Encoded]:
        """A sample as one row, or several.

        Where the template renders earlier messages differently when a conversation continues (as Qwen3's
        does, which leaves earlier thoughts out), there is a row for each answer. A text without a prompt
        that is too long is cut into rows.

        Raises:
            PacelineError: for a tokenizer without a chat template or offsets, a template that refuses the
                conversation or renders an answer differently from the prompt for it, and what is too long.
        """
        if isinstance(sample, Text):
            whole = self._of_text(sample)
            return self._pieces(whole) if not sample.prompt else self._fitting(whole)
        if self.train_on == "all":
            text = self._render(sample, len(sample.messages))
            return self._fitting(self._tokens(text, [range(len(text))], sample.weight))
        messages = sample.messages
        ends = [
            number
            for number, one in enumerate(messages, 1)
            if one["role"] == "assistant" and number - 1 not in sample.silent
        ]
        if not ends:
            return []
        ends = ends[-1:] if self.train_on == "last" else ends
        answers = [self.answer_in(sample, end) for end in ends]
        is_last = ends[-1] == len(messages)
        whole_text = answers[-1][0] if is_last else self._render(sample, len(messages))
        if self.train_on == "last" or all(whole_text.startswith(text) for text, _ in answers):
            last = answers[-1][0] if self.train_on == "last" else whole_text
            found = [self._tokens(last, [place for _, place in answers], sample.weight)]
        else:
            found = [self._tokens(text, [place], sample.weight) for text, place in answers]
        return [row for one in found for row in self._fitting(one)]

    def answer(self, sample: Sample) -> Encoded | None:
        """A sample that ends with an answer, of which that answer alone is learned; None: it is dropped."""
        if isinstance(sample, Text):
            whole = self._of_text(sample)
        else:
            text, place = self.answer_in(sample, len(sample.messages))
            whole = self._tokens(text, [place], sample.weight)
        fitting = self._fitting(whole)
        return fitting[0] if fitting else None

    def answer_in(self, sample: Conversation, end: int) -> tuple[str, range]:
        """The text of a conversation up to an answer, and where that is in it.

        Args:
            sample: The conversation.
            end: How many messages; the last of them is the answer.

        Raises:
            PacelineError: without a chat template or offsets, and where the template does not begin an
                answer with the prompt for it.
        """
        before = self._render(sample, end - 1, add_generation_prompt=True)
        text = self._render(sample, end)
        if not text.startswith(before):
            raise PacelineError(
                "the chat template renders an answer differently from the prompt for it",
                code="chat-template",
                got=f"{text[-200:]!r} after the prompt {before[-200:]!r}",
                fix="chat_template=FILE: one that begins an answer with what add_generation_prompt adds",
            )
        return text, range(len(before), len(text))

    def _render(self, sample: Conversation, end: int, **more: Any) -> str:
        if not self.tokenizer.chat_template:
            raise PacelineError(
                "the tokenizer has no chat template",
                code="chat-template",
                fix="chat_template=chatml, or a file of Jinja",
            )
        try:
            text: str = self.tokenizer.apply_chat_template(
                sample.messages[:end], tools=sample.tools, tokenize=False, **more
            )
        except Exception as error:  # of Jinja, which raise_exception of a template raises too
            raise PacelineError(
                f"the chat template refuses a conversation: {error}", code="chat-template"
            ) from None
        return text

    def _of_text(self, sample: Text) -> Encoded:
        """As the tokenizer begins texts, and with the token that ends them."""
        text = sample.prompt + sample.completion
        learned = range(0 if self.train_on == "all" else len(sample.prompt), len(text))
        found = self._tokens(text, [learned], sample.weight, special=True)
        end = self.tokenizer.eos_token_id
        if end is None:
            return found
        tokens, targets = found.tokens[:], found.targets[:]
        if tokens[-1] != end:
            tokens.append(end)
            targets.append(IGNORED)
        targets[-2] = end
        return replace(found, tokens=tokens, targets=targets)

    def _tokens(self, text: str, learned: Sequence[range], weight: float, special: bool = False) -> Encoded:
        if not self.tokenizer.is_fast:
            raise PacelineError(
                "the tokenizer gives no offsets",
                code="tokenizer-mismatch",
                fix="a fast tokenizer (tokenizer.json)",
            )
        found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        tokens = found["input_ids"]
        is_learned = [  # a token may begin with the space before an answer
            any(begin < part.stop and end > part.start for part in learned)
            for begin, end in found["offset_mapping"]
        ]
        following = zip(tokens[1:], is_learned[1:], strict=True)
        targets = [token if learns else IGNORED for token, learns in following] + [IGNORED]
        return Encoded(array("i", tokens), array("i", targets), weight)

    def _fitting(self, whole: Encoded) -> list[Encoded]:
        """What there is of a sample within the length."""
        over = len(whole.tokens) - self.length
        if over <= 0:
            return [whole]
        self._check_length(len(whole.tokens))
        if self.too_long == "drop":
            return []
        targets = whole.targets[: self.length]
        targets[-1] = IGNORED
        return [replace(whole, tokens=whole.tokens[: self.length], targets=targets, cut=over)]

    def _pieces(self, whole: Encoded) -> list[Encoded]:
        """A text in pieces of the length; each begins with the last token of the one before."""
        if self.too_long != "cut" or len(whole.tokens) <= self.length or self.length < 2:
            return self._fitting(whole)
        found = []
        for begin in range(0, len(whole.tokens) - 1, self.length - 1):
            its = slice(begin, begin + self.length)
            targets = whole.targets[its]
            targets[-1] = IGNORED
            found.append(replace(whole, tokens=whole.tokens[its], targets=targets))
        return found

    def _check_length(self, size: int) -> None:
        if self.too_long == "error":
            raise PacelineError(
                f"a sample has {size} tokens, and length is {self.length}",
                code="samples-too-long",
                fix=f"length={size}, too_long=cut, or too_long=drop",
            )
