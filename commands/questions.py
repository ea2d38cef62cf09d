"""Questions of a command: answered by a flag, on a terminal, or by their default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from ..errors import PacelineError, nearest


class Question(NamedTuple):
    """A question, and how its answer is read.

    Args:
        flag: The option that answers it, without its hyphens.
        text: The question.
        default: What is answered with the return key.
        help: What ``?`` shows.
        read: The value of an answer.
    """

    flag: str
    text: str
    default: str
    help: str
    read: Callable[[str], Any]


class Asker:
    """Answers questions, each once.

    Args:
        given: Answers by flag; None where the flag was not given.
        prompts: Whether there is a terminal to ask on.

    Attributes:
        prompts: The same.
    """

    def __init__(self, given: Mapping[str, str | None], prompts: bool) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self.prompts = prompts

    def gives(self, flag: str) -> str | None:
        """The answer of a flag."""
        return self._given.get(flag)

    def take(self, flag: str) -> str | None:
        """The answer of a flag, which is then used."""
        return self._given.pop(flag, None)

    def ask(self, question: Question) -> Any:
        """The value of the answer.

        Raises:
            PacelineError: for a flag with a wrong answer.
            typer.Abort: for Ctrl-C on the terminal.
        """
        given = self._given.pop(question.flag, None)
        if given is not None or not self.prompts:
            try:
                return question.read(question.default if given is None else given)
            except PacelineError as error:
                raise PacelineError(f"--{question.flag}: {error}", code="invalid-answer") from None
        while True:
            answer = str(typer.prompt(question.text, default=question.default)).strip()
            if answer == "?":
                typer.echo("  " + question.help.replace("\n", "\n  "))
                continue
            try:
                return question.read(answer)
            except PacelineError as error:
                typer.echo("  " + str(error).replace("\n", "\n  "))

    def finish(self) -> None:
        """Refuse flags that answered nothing.

        Raises:
            PacelineError: with their names.
        """
        if self._given:
            flags = ", ".join(f"--{flag}" for flag in self._given)
            raise PacelineError(
                f"no use for {flags} with the other answers", code="options-conflict", fix="leave it out"
            )


def one_of(choices: Sequence[Any]) -> Callable[[str], Any]:
    """Reads one of these, by its text."""
    by_text = {str(choice): choice for choice in choices}

    def read(answer: str) -> Any:
        if answer.lower() in by_text:
            return by_text[answer.lower()]
        meant = nearest(answer, by_text)
        raise PacelineError(
            "that is none of the choices",
            code="invalid-answer",
            got=answer,
            allowed=", ".join(by_text),
            meant=meant,
        )

    return read


def yes_or_no(answer: str) -> bool:
    """Reads yes or no, in the words that people type.

    Raises:
        PacelineError: for another word.
    """
    words = {**dict.fromkeys(("y", "yes", "true"), True), **dict.fromkeys(("n", "no", "false"), False)}
    if answer.lower() not in words:
        raise PacelineError(
            "that is neither yes nor no", code="invalid-answer", got=answer, allowed="yes, no"
        )
    return words[answer.lower()]


def count(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Reads an integer within bounds."""
    allowed = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"

    def read(answer: str) -> int:
        number = int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 10 else -1
        if number < least or (most is not None and number > most):
            raise PacelineError(
                "that is no such number", code="invalid-answer", got=answer, allowed=allowed
            )
        return number

    return read


def existing_file(answer: str) -> str | None:
    """Reads the path of a file that exists; ``none`` is None.

    Raises:
        PacelineError: where there is no such file.
    """
    if answer.lower() in ("none", ""):
        return None
    if not Path(answer).expanduser().is_file():
        raise PacelineError(
            "there is no such file", code="file-not-found", got=answer, allowed="a file, or none"
        )
    return answer
