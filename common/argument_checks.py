"""Checks the arguments of public classes and functions with pydantic: all violations in one error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from ..durations import ALLOWED as DURATIONS
from ..durations import Duration
from ..errors import PacelineError, nearest, report, shown
from ..other_trainers import names_in

F = TypeVar("F", bound=Callable[..., None])
_PACKAGE = __name__.partition(".")[0]


class Kind(NamedTuple):
    """What an argument may be.

    Args:
        make: Gives the type that pydantic checks. It is made at the first check: importing pydantic takes
            0.15 seconds.
        allowed: The same in words.
        choices: The names that may be given, where they are few.
    """

    make: Callable[[], Any]
    allowed: str
    choices: tuple[str, ...] = ()


def _number(kind: type, **limits: Any) -> Any:
    from pydantic import Field

    return Annotated[kind, Field(strict=True, **limits)]


def _texts() -> Any:
    from pydantic import Field

    return Annotated[list[Annotated[str, Field(min_length=1, strict=True)]], Field(min_length=1)]


def _duration(unit: str | None = None) -> Any:
    from pydantic import BeforeValidator

    def read(value: Any) -> Duration:
        found = Duration.parse(value)
        if unit is not None and found.unit != unit:
            raise ValueError
        return found

    return Annotated[Any, BeforeValidator(read)]


COUNT = Kind(lambda: _number(int, ge=1), "an integer of at least 1")
SOME_STEPS = Kind(lambda: _number(int, ge=1, le=100_000), "an integer from 1 to 100000")
COUNT_OR_ZERO = Kind(lambda: _number(int, ge=0), "an integer of at least 0")
COUNT_OR_NONE = Kind(lambda: _number(int, ge=1) | None, "an integer of at least 1, or None")
SEED = Kind(lambda: _number(int, ge=0, lt=2**64), "an integer from 0 to 2**64 - 1")
AMOUNT = Kind(lambda: _number(float, ge=0, allow_inf_nan=False), "a number of at least 0")
NUMBER_OR_NONE = Kind(lambda: _number(float, allow_inf_nan=False) | None, "a number, or None")
ABOVE_ZERO = Kind(lambda: _number(float, gt=0, allow_inf_nan=False), "a number above 0")
ABOVE_ZERO_OR_NONE = Kind(
    lambda: _number(float, gt=0, allow_inf_nan=False) | None, "a number above 0, or None"
)
ABOVE_ONE = Kind(lambda: _number(float, gt=1, allow_inf_nan=False), "a number above 1")
ABOVE_ONE_OR_NONE = Kind(
    lambda: _number(float, gt=1, allow_inf_nan=False) | None, "a number above 1, or None"
)
PART = Kind(lambda: _number(float, ge=0, lt=1), "a number from 0 to less than 1")
INSIDE_ONE = Kind(lambda: _number(float, gt=0, lt=1), "a number between 0 and 1")
SWITCH = Kind(lambda: _number(bool), "True or False")
SWITCH_OR_NONE = Kind(lambda: _number(bool) | None, "True, False or None")
SWITCH_COUNT_OR_NONE = Kind(
    lambda: _number(bool) | _number(int, ge=1) | None, "True, False, an integer of at least 1, or None"
)
TEXT = Kind(lambda: _number(str, min_length=1), "a string")
TEXT_OR_NONE = Kind(lambda: _number(str, min_length=1) | None, "a string, or None")
TEXTS = Kind(lambda: _texts(), "a string, or several in a list")
SWITCH_OR_TEXTS = Kind(
    lambda: _number(bool) | _number(str, min_length=1) | _texts(),
    "True, False, a name, or several in a list",
)
NAME = Kind(lambda: _number(str, pattern=r"^[^/\x00]{1,100}$"), "a short name without '/'")
NAME_OR_NONE = Kind(
    lambda: _number(str, pattern=r"^[^/\x00]{1,100}$") | None, "a short name without '/', or None"
)
DURATION = Kind(_duration, DURATIONS)
DURATION_OR_NONE = Kind(lambda: _duration() | None, f"{DURATIONS}, or None")
STEPS = Kind(lambda: _duration("st"), 'a number of steps: 50 or "50st"')


@cache
def one_of(*choices: Any) -> Kind:
    """One of these values."""
    names = tuple(choice for choice in choices if isinstance(choice, str))
    return Kind(lambda: Literal[choices], ", ".join(map(repr, choices)), names)


def check_arguments(who: str, **given: tuple[Any, Kind]) -> None:
    """Check all arguments at once.

    Args:
        who: What takes them, for the error.
        **given: The value and what it may be, by the argument's name.

    Raises:
        PacelineError: one report of all that are not right.

    Example:
        >>> check_arguments("EarlyStopping", patience=(0, COUNT))
        Traceback (most recent call last):
        paceline.errors.PacelineError: EarlyStopping: 1 invalid argument
          patience: got 0; allowed: an integer of at least 1
          more: paceline explain invalid-arguments
    """
    problems = [
        f"{name}: {_problem(value, kind)}"
        for name, (value, kind) in given.items()
        if not is_valid(_adapter(kind).validate_python, value)
    ]
    if problems:
        raise report(who, problems, code="invalid-arguments")


def refuse_unknown(
    who: str, unknown: Iterable[str], known: Iterable[str], peers: Mapping[str, str] | None = None
) -> None:
    """Refuse arguments that are none, each with the name that was meant.

    Args:
        who: What was called.
        unknown: The names that it does not take.
        known: Those that it takes.
        peers: Other trainers' names, with an argument of ours or a sentence; by default those of ``who``.

    Raises:
        PacelineError: one report of all of them.

    Example:
        >>> refuse_unknown("Checkpoint", ["save_top_k"], ["every", "keep_best"])
        Traceback (most recent call last):
        paceline.errors.PacelineError: Checkpoint has no argument 'save_top_k'
          allowed: every, keep_best
          did you mean: keep_best?
          more: paceline explain unknown-argument
    """
    unknown, known = list(unknown), list(known)
    if not unknown:
        return
    peers = names_in(who) if peers is None else peers
    answers = [_answer(name, known, peers) for name in unknown]
    if len(unknown) == 1:
        meant, fix = answers[0]
        what = f"{who} has no argument {unknown[0]!r}"
        raise PacelineError(what, code="unknown-argument", allowed=", ".join(known), meant=meant, fix=fix)
    raise report(
        who,
        [_line(one, *answers[n], one in peers) for n, one in enumerate(unknown)],
        code="unknown-argument",
    )


def _line(name: str, meant: str | None, fix: str | None, is_known: bool) -> str:
    """One of several wrong names."""
    if meant is not None:
        fix = f"use {meant}" if is_known else f"did you mean {meant}?"
    return f"{name}: no such argument" + (f"; {fix}" if fix else "")


def _answer(name: str, known: list[str], peers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """What was meant, or a sentence on what to do."""
    ours = peers.get(name)
    if ours is None:
        return nearest(name, known), None
    return (None, ours) if " " in ours else (ours, None)


def by_name(who: str, example: str) -> Callable[[F], F]:
    """A decorator of a constructor that takes its arguments by name: others are an error that says so.

    Args:
        who: The class, for the error.
        example: A right call.
    """

    def decorate(constructor: F) -> F:
        @wraps(constructor)
        def checked(self: Any, *values: Any, **named: Any) -> None:
            if values:
                raise PacelineError(
                    f"{who} takes its arguments by name",
                    code="invalid-arguments",
                    got=", ".join(map(shown, values)),
                    fix=example,
                )
            constructor(self, **named)

        return cast(F, checked)

    return decorate


def check_names(
    cls: type, options: Mapping[str, Any], args: tuple[Any, ...] = (), who: str | None = None
) -> None:
    """Refuse keywords that a constructor of ours does not take; one of the user's own is theirs.

    Args:
        cls: The class to be built.
        options: The keywords.
        args: What is passed by position.
        who: Its name in the error, if another one.

    Raises:
        PacelineError: one report of all of them.
    """
    init = cls.__init__  # type: ignore[misc]
    is_default = init is object.__init__
    if is_default and args and not options:
        raise TypeError(f"{cls.__name__}() takes no arguments")  # as Python says it without a __new__
    home = getattr(init, "__module__", None) or ""
    if not options or not (is_default or home.partition(".")[0] == _PACKAGE):
        return
    parameters = [] if is_default else list(inspect.signature(init).parameters.values())[1:]
    known = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(known) < len(parameters) and parameters[-1].name != "unknown":
        return  # it has a use for them
    unknown = [name for name in options if name not in known]
    if unknown:
        bases = reversed(cls.__mro__)
        peers = {name: ours for base in bases for name, ours in names_in(base.__name__).items()}
        refuse_unknown(who or cls.__name__, unknown, known, peers)


def _problem(value: Any, kind: Kind) -> str:
    meant = nearest(value, kind.choices) if isinstance(value, str) else None
    return f"got {shown(value)}; allowed: {kind.allowed}" + (f"; did you mean {meant!r}?" if meant else "")


def is_valid(validate: Callable[[Any], Any], value: Any) -> bool:
    """Whether pydantic takes it; values whose own methods raise are not taken."""
    try:
        validate(value)
    except Exception:
        return False
    return True


@cache
def _adapter(kind: Kind) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind.make())
