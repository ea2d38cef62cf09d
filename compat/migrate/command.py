"""``paceline migrate``: the report, and ``--write``."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import PacelineError
from .sources import python_files

if TYPE_CHECKING:
    from .analysis import FileReport
    from .lightning.cli_config import ConfigReport

Say = Callable[[str], None]
READABLE, TO_REWRITE, UNREADABLE = 0, 1, 2
"""The exit codes: nothing has to be rewritten, something has, a file cannot be read."""


def report(path: Path, as_json: bool, say: Say, warn: Say) -> int:
    """List what is in a file or a folder.

    Args:
        path: A file, or a folder of them.
        as_json: Print one JSON object instead of lines.
        say: Prints a line.
        warn: Prints a line about what is wrong.

    Returns:
        The exit code.

    Raises:
        PacelineError: where there is no such file, and without libcst.
    """
    reports, configs = _analysed(path)
    from . import report as lines

    if as_json:
        say(lines.as_json(reports))
        return _code(reports)
    for one in reports:
        if one.libraries:
            say(f"{one.path}: {', '.join(one.libraries)}")
            for line in lines.lines_of(one):
                say(line)
            say("")
    for config in configs:
        _say_config(config, say)
    _warn_of_errors(reports, warn)
    say(lines.summary(reports))
    return max(_code(reports), TO_REWRITE if configs else READABLE)


def write(path: Path, ask: Callable[[str], bool] | None, yes: bool, say: Say, warn: Say) -> int:
    """Print the native form of Lightning code as a diff, and write it.

    Args:
        path: A file, or a folder of them.
        ask: Asks a question on a terminal; None where there is no terminal.
        yes: Write without asking, also over changes that are not committed.
        say: Prints a line.
        warn: Prints a line about what is wrong.

    Returns:
        The exit code: of what is left to rewrite.

    Raises:
        PacelineError: as ``report`` does, and for a file that cannot be written.
    """
    reports, configs = _analysed(path)
    from . import report as lines

    changed = [one for one in reports if one.rewritten != one.source]
    for one in changed:
        say(_diff(one))
    for one in reports:
        left = [*lines.left_over(one)]
        if left:
            say(f"{one.path}: left as it is")
            say("\n".join(left) + "\n")
    _warn_of_errors(reports, warn)
    others = sorted({name for one in reports for name in one.libraries} - {"lightning"})
    if others:
        warn(f"--write translates Lightning code alone; code for {', '.join(others)} is listed above")
    for config in configs:
        _say_config(config, say)
    if not changed and not configs:
        say("nothing to write")
        return _code(reports, written=True)
    if not _may_write(changed, [config.target for config in configs], ask, yes, warn):
        return max(_code(reports), TO_REWRITE)
    texts = [(one.path, one.rewritten) for one in changed]
    for target, text in [*texts, *((one.target, one.text().encode()) for one in configs)]:
        try:
            _replace(target, text)
        except OSError as error:
            raise PacelineError(
                f"{target} cannot be written: {error.strerror}", code="cannot-write"
            ) from None
        say(f"wrote {target}")
    of_configs = TO_REWRITE if any(config.left for config in configs) else READABLE
    return max(_code(reports, written=True), of_configs)


def _analysed(path: Path) -> tuple[list[FileReport], list[ConfigReport]]:
    if find_spec("libcst") is None:
        raise PacelineError(
            "paceline migrate reads code with libcst", code="package-missing", fix="pip install libcst"
        )
    from .analysis import analyse
    from .lightning import cli_config

    files = [] if cli_config.is_config(path) else python_files(path)
    return [analyse(file) for file in files], cli_config.configs(path)


def _say_config(config: ConfigReport, say: Say) -> None:
    say(f"{config.path}: LightningCLI; `paceline fit {config.target}` reads what --write makes of it")
    for line, name, text in sorted(config.left):
        say(f"  {config.path}:{line}: {name}: {text}")
    say("")


def _code(reports: Sequence[FileReport], written: bool = False) -> int:
    from .tables import Group

    if any(one.error for one in reports):
        return UNREADABLE
    automatic = False if written else None
    return TO_REWRITE if any(one.count(Group.REWRITE, automatic) for one in reports) else READABLE


def _warn_of_errors(reports: Sequence[FileReport], warn: Say) -> None:
    from .report import error_of

    for one in reports:
        if one.error is not None:
            warn(f"error: {error_of(one)}")


def _diff(one: FileReport) -> str:
    before, after = (text.decode("utf-8", "replace") for text in (one.source, one.rewritten))
    new = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(one.path), str(one.path), lineterm=""
    )
    return "\n".join(new) + "\n"


def _may_write(
    changed: Sequence[FileReport],
    new: Sequence[Path],
    ask: Callable[[str], bool] | None,
    yes: bool,
    warn: Say,
) -> bool:
    if yes:
        return True
    if ask is None:
        warn("nothing was written: without a terminal --write needs --yes")
        return False
    for one in changed:
        if _is_uncommitted(one.path):
            warn(f"nothing was written: {one.path} has changes that git has not; commit them, or add --yes")
            return False
    paths = [*(one.path for one in changed), *new]
    files = f"{len(paths)} files" if len(paths) > 1 else str(paths[0])
    return ask(f"write {files}?")


def _is_uncommitted(path: Path) -> bool:
    """Whether git knows of changes to the file; False where there is no git, and in no repository."""
    where = path.resolve()
    command = ["git", "-C", str(where.parent), "status", "--porcelain", "--", where.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _replace(path: Path, content: bytes) -> None:
    """All of the new file, or the old one."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, name)
        else:
            Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
