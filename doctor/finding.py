"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PacelineError, cut

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
ORDER = (OK, SKIPPED, WARNING, FAILED)
"""The outcomes, the worst one last."""
_LONGEST = 300


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        check: Its name.
        outcome: ``"ok"``, ``"warning"``, ``"FAILED"`` or ``"skipped"``.
        found: One line of what was found.
        cure: What to do; "" where nothing has to be done.
        strategy: The strategy it was about; "" for the machine.
        details: More lines for people: the end of what a rank has printed, say.

    Example:
        >>> Finding("clock", OK, "it agrees").outcome
        'ok'
    """

    check: str
    outcome: str
    found: str
    cure: str = ""
    strategy: str = ""
    details: tuple[str, ...] = ()


def of_error(check: str, error: Exception, cure: str = "", strategy: str = "") -> Finding:
    """A check that FAILED with an error; one of ours brings its own cure.

    Args:
        check: Its name.
        error: What was raised.
        cure: Where the error has none.
        strategy: As in ``Finding``.
    """
    what, fix = split_error(str(error))
    if not isinstance(error, PacelineError):
        what = f"{type(error).__name__}: {what}"
    return Finding(check, FAILED, cut(what, _LONGEST), fix or cure, strategy)


def split_error(text: str) -> tuple[str, str]:
    """The first line of an error with what was given, and the fix that it names; "" for none."""
    lines = text.splitlines() or [""]
    parts = dict(line.strip().partition(": ")[::2] for line in lines[1:])
    got = parts.get("got")
    return lines[0] + (f" ({got})" if got else ""), parts.get("fix", "")
