"""Which files are read, and what can be said of them before they are."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from ...errors import PacelineError

MARK = "# paceline: "
_SKIPPED = {"__pycache__", "site-packages", "node_modules"}


class Unreadable(Exception):
    """A file that cannot be read as Python.

    Args:
        line: Where, from 1; None where that is unknown.
        message: Why.
    """

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line, self.message = line, message


def python_files(path: Path) -> list[Path]:
    """The file itself, or all of a folder's, sorted; hidden folders and virtual environments are skipped.

    Raises:
        PacelineError: where there is neither.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PacelineError(f"{path}: no such file or folder", code="file-not-found")
    try:
        return sorted(_below(path))
    except OSError as error:
        raise PacelineError(
            f"{error.filename}: cannot be read: {error.strerror}", code="file-unreadable"
        ) from None


def _below(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            hidden = entry.name.startswith(".") or entry.name in _SKIPPED
            if not hidden and not (entry / "pyvenv.cfg").exists():
                yield from _below(entry)
        elif entry.suffix == ".py" and not entry.name.startswith(".") and entry.is_file():
            yield entry


def read(path: Path) -> tuple[bytes, ast.Module]:
    """The file's bytes and what Python reads in them.

    Raises:
        Unreadable: where it cannot be read, or is no Python.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Unreadable(None, f"cannot be read: {error.strerror}") from None
    if path.suffix == ".ipynb":
        raise Unreadable(None, "a notebook; write it as a script first: jupyter nbconvert --to script")
    return source, parse(source)


def parse(source: bytes) -> ast.Module:
    """Parse; nothing is imported or run.

    Raises:
        Unreadable: where it is no Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise Unreadable(_line(error, source), f"not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(None, f"not Python: {error or 'nested too deeply'}") from None


def _line(error: SyntaxError, source: bytes) -> int | None:
    if error.lineno:
        return error.lineno
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return source.count(b"\n", 0, wrong.start) + 1
    return None


def packages(tree: ast.Module) -> set[str]:
    """The packages that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def marks(source: bytes) -> list[tuple[int, str]]:
    """The comments that ``--write`` left: line and sentence."""
    if MARK.encode() not in source:
        return []
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return [(t.start[0], t.string.removeprefix(MARK)) for t in comments if t.string.startswith(MARK)]
