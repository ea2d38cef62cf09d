"""Errors a tired person can act on, and tracebacks that show the user's own frames."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RECIPES = _PACKAGE + "recipes" + os.sep
_FOLDERS = {
    *("callbacks", "commands", "common", "compat", "config", "doctor", "optimizers", "other_trainers"),
    *("schedules", "strategies", "testing", "tools", "trainer"),
}
"""Those of the package, but for recipes; its tests and documentation may lie beside them."""
_SAME = {"learning_rate": "lr", "lr": "learning_rate", "wd": "weight_decay"}
_UNSET: Any = object()
_MOST_LINES = 12
_LONGEST_VALUE = 200
_LONGEST_LINE = 500
_MOST_PROBLEMS = 7  # with the traceback's head, the user's line and the code: 12 lines
_NO_DATA = "data pointer on an invalid python storage"
_EXPORT = (
    "a parameter that a strategy has sharded has no data of its own; it stays sharded after the run\n"
    'fix: trainer.export(folder, "model") on all ranks writes the whole of module.model, an adapter too; '
    "load_from_checkpoint(path) of the module's class gives a whole module"
)
_MESHES = "must have the same mesh"
_CLIP = (
    "some layers are split over ranks and others are not, and torch has no norm of both\n"
    "fix: Trainer(clip_grad_norm=...) clips in optimizer.step(), under manual optimization too"
)
_MIXED = "mixed torch.Tensor and DTensor"
_CALL = (
    "between steps each rank holds a shard of the weights, so that the network cannot be called in a hook\n"
    "fix: call it in training_step, validation_step, test_step or predict_step"
)
Report = Callable[[BaseException, str], bool]
"""Takes an uncaught error and its text; whether it sees to the printing, as a launcher does."""


class PacelineError(ValueError):
    """A mistake, said in one form: what, where, got, allowed, did you mean, fix.

    Args:
        what: One sentence that names the mistake.
        code: The kind of the mistake, of those with a page in docs/errors; printed below the message.
        where: The place: ``file:line``, a config key path, a step.
        got: What was given; shown by ``repr`` unless it is a string, at most 200 characters of each line.
        allowed: What would have been right.
        meant: The nearest right name, when there is one.
        fix: What to do now.

    Attributes:
        code: None where the mistake has no page, as one of a user's or a plugin's code.

    Example:
        >>> print(PacelineError("mode is not valid", got="mni", meant="min"))
        mode is not valid
          got: mni
          did you mean: min?
    """

    code: str | None = None

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: str | None = None,
        got: Any = _UNSET,
        allowed: str | None = None,
        meant: str | None = None,
        fix: str | None = None,
    ) -> None:
        lines = [cut(what, _LONGEST_LINE)]
        if where:
            lines.append(f"  where: {where}")
        if got is not _UNSET:
            lines.append(f"  got: {cut(got) if isinstance(got, str) else shown(got)}")
        if allowed:
            lines.append(f"  allowed: {allowed}")
        if meant:
            lines.append(f"  did you mean: {meant}?")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))
        self.code = code or self.code
        if self.code:
            self.add_note(explained(self.code))

    def __reduce__(self) -> tuple[Any, ...]:
        """Its text as it is: a subclass may take other arguments."""
        return _rebuilt, (type(self), self.args), self.__dict__

    def add_note(self, note: str) -> None:
        """Add a line to what is printed, above the one that names the code."""
        super().add_note(note)
        last = explained(self.code) if self.code else None
        if last in self.__notes__:
            self.__notes__.remove(last)
            self.__notes__.append(last)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message after the user's frames, as elsewhere."""
        return users_traceback(self).splitlines()


def _rebuilt(kind: type[PacelineError], args: tuple[Any, ...]) -> PacelineError:
    error = kind.__new__(kind)
    error.args = args
    return error


def explained(code: str) -> str:
    """The line below a message that says how to read more.

    Example:
        >>> explained("checkpoint-not-found")
        '  more: paceline explain checkpoint-not-found'
    """
    return f"  more: paceline explain {code}"


def with_notes(error: BaseException) -> str:
    """An error's message and what was added to it.

    Example:
        >>> print(with_notes(PacelineError("there is no training data", code="no-data")))
        there is no training data
          more: paceline explain no-data
    """
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def cut(text: str, most: int = _LONGEST_VALUE) -> str:
    """A text whose lines have at most so many characters.

    Example:
        >>> cut("a" * 300, 10)
        'aaaaaaa...'
    """
    return "\n".join(line if len(line) <= most else line[: most - 3] + "..." for line in text.split("\n"))


def shown(value: Any, most: int = _LONGEST_VALUE) -> str:
    """A value for a message: its ``repr`` on one line, cut.

    Example:
        >>> shown([1, 2])
        '[1, 2]'
    """
    try:
        text = repr(value)
    except Exception:  # a user's own
        text = f"an object of {type(value).__name__}"
    return cut(" ".join(text.split()), most)


def report(who: str, problems: list[str], noun: str = "argument", *, code: str) -> PacelineError:
    """One error of at most 12 lines for any number of problems with arguments, or other things."""
    most = _MOST_PROBLEMS - (len(problems) > _MOST_PROBLEMS)  # the last line is then the rest
    lines = [f"  {cut(line, _LONGEST_LINE)}" for line in problems[:most]]
    lines += [f"  and {len(problems) - most} more"] if len(problems) > most else []
    head = f"{len(problems)} invalid {noun}" + ("s" if len(problems) > 1 else "")
    return PacelineError("\n".join([f"{who}: {head}", *lines]), code=code)


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more there are.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice most like ``name``, or that means the same; None when nothing does."""
    same = _SAME.get(name)
    if same is not None and same in (choices := list(choices)):
        return same
    by_folded = {c.lower().replace("-", "_"): c for c in choices}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def is_users_frame(filename: str) -> bool:
    """True for code the user wrote: not ours (recipes are run as a user's), not a library's."""
    path = os.path.abspath(filename)
    if "site-packages" in path:  # a virtual environment may lie inside the package's own folder
        return False
    if os.path.dirname(path) == os.path.dirname(sys.executable):  # the commands of the environment
        return False
    if path.startswith(_PACKAGE) and not path.startswith(_RECIPES):
        folder, *inside = path[len(_PACKAGE) :].split(os.sep)
        return bool(inside) and folder not in _FOLDERS
    library = path.startswith(os.path.dirname(os.__file__) + os.sep)
    return not library and not filename.startswith("<frozen")


def users_line(error: BaseException) -> str | None:
    """The last line of the user's code that an error went through, as ``file:line``."""
    if isinstance(error, SyntaxError):  # its message has the line
        return None
    frames = traceback.extract_tb(error.__traceback__)
    found = [f"{frame.filename}:{frame.lineno}" for frame in frames if is_users_frame(frame.filename)]
    return found[-1] if found else None


def explain_sharded(error: BaseException) -> None:
    """Add what to call to torch's error for sharded parameters that were to be saved, clipped or called."""
    text, notes = str(error), getattr(error, "__notes__", ())
    for sign, note in ((_NO_DATA, _EXPORT), (_MESHES, _CLIP), (_MIXED, _CALL)):
        if sign in text and note not in notes:
            error.add_note(note)


def shorten_traceback(error: BaseException) -> None:
    """Have an error that ends a run printed with the user's frames only, in ``short_tracebacks``."""
    error._crossed_fit = True  # type: ignore[attr-defined]
    if isinstance(error, KeyboardInterrupt):  # of that the run said how it ended
        show_in_notebook(error, "KeyboardInterrupt")


def show_in_notebook(error: BaseException, text: str) -> None:
    """Have IPython show this text in place of an error's traceback, through its hook for that."""
    error._render_traceback_ = text.splitlines  # type: ignore[attr-defined]


def users_traceback(error: BaseException) -> str:
    """An error as text with the user's frames only; every frame under ``PACELINE_TRACEBACK=full``."""
    explain_sharded(error)
    if os.environ.get("PACELINE_TRACEBACK") == "full":
        return "".join(traceback.format_exception(error)).rstrip()
    return _with_users_frames(type(error), error, error.__traceback__)


@contextmanager
def short_tracebacks(report: Report | None = None, *, stays: bool = False) -> Iterator[None]:
    """Print an error that leaves the block uncaught with the user's frames only.

    ``sys.excepthook`` is replaced, unless it is a debugger's or notebook's own, and put back when the block
    ends without an error. After an error it stays until the next block that ends without one.
    ``PACELINE_TRACEBACK=full`` shows every frame.

    Args:
        report: Sees to the printing of what nobody catches.
        stays: Leave the hook in its place after success, too.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _UsersFrames()
    hook = sys.excepthook
    if not isinstance(hook, _UsersFrames):
        yield
        return
    hook.report = report or hook.report
    hook.stays |= stays
    hook.depth += 1
    try:
        yield
    finally:
        hook.depth -= 1
    if not hook.depth and not hook.stays and sys.excepthook is hook:
        sys.excepthook = sys.__excepthook__


class _UsersFrames:
    """An ``excepthook``: errors of ours and of runs without our frames, all others as Python does.

    Attributes:
        report: Sees to the printing, where it can.
        stays: Whether it is never put back.
        depth: How many blocks of ``short_tracebacks`` are open.
    """

    def __init__(self) -> None:
        self.report: Report | None = None
        self.stays = False
        self.depth = 0

    def __call__(self, kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        ours = isinstance(error, PacelineError) or getattr(error, "_crossed_fit", False)
        explain_sharded(error)
        if not ours or os.environ.get("PACELINE_TRACEBACK") == "full":
            if not self._reported(error, "".join(traceback.format_exception(kind, error, tb)).rstrip()):
                sys.__excepthook__(kind, error, tb)
        elif not isinstance(error, KeyboardInterrupt):  # of that the run said how it ended
            text = _with_users_frames(kind, error, tb)
            if not self._reported(error, text):
                print(text, file=sys.stderr)

    def _reported(self, error: BaseException, text: str) -> bool:
        return self.report is not None and self.report(error, text)


def _with_users_frames(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> str:
    shown = traceback.TracebackException(kind, error, tb)
    link: traceback.TracebackException | None = shown
    while link is not None:
        # Rebuilt without columns: a line of carets below each frame is a line less for what matters.
        frames = [
            traceback.FrameSummary(f.filename, f.lineno, f.name, line=f.line)
            for f in link.stack
            if is_users_frame(f.filename)
        ]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    lines = "".join(shown.format()).replace("paceline.errors.PacelineError", "PacelineError").splitlines()
    if len(lines) > _MOST_LINES and not isinstance(error, PacelineError):
        message = str(error).splitlines()
        rest = set(message) - set(_essence(message))
        lines = [line for line in lines if line not in rest]
    return "\n".join(lines)


def _essence(message: list[str]) -> list[str]:
    """The lines that matter of a long message: torch lists all overloads, a worker its whole traceback."""
    shown = [line for line in message if line.strip(" ^~") and not line.startswith("while reading ")]
    if any("Original Traceback" in line for line in shown):
        return shown[:1] + shown[-3:]
    return shown[:1] if message[0].strip() else shown[:8]
