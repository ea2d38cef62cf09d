"""What ``paceline migrate`` prints: the list of a file, the summary, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .analysis import FileReport
from .found import Finding
from .tables import Group

_BY_WRITE = "* --write does it"


def lines_of(report: FileReport) -> Iterator[str]:
    """The list of a file, in three groups; equal findings are one line."""
    for group in Group:
        found = [finding for finding in report.findings if finding.group is group]
        if found:
            automatic = group is Group.REWRITE and any(finding.automatic for finding in found)
            yield f"{group.value} ({_BY_WRITE}):" if automatic else f"{group.value}:"
            yield from _group(report.path, found)


def left_over(report: FileReport) -> Iterator[str]:
    """What ``--write`` leaves to its user."""
    left = [f for f in report.findings if not f.automatic and f.group is not Group.RUNS]
    for group in (Group.CHANGES, Group.REWRITE):
        found = [finding for finding in left if finding.group is group]
        if found:
            yield f"{group.value}:"
            yield from _group(report.path, found)


def _group(path: Path, found: Sequence[Finding]) -> Iterator[str]:
    equal: dict[tuple[str, str, bool], list[int]] = {}
    for finding in found:
        lines = equal.setdefault((finding.name, finding.text, finding.automatic), [])
        if finding.line not in lines:
            lines.append(finding.line)
    for (name, text, automatic), (first, *others) in equal.items():
        mark = "* " if automatic and found[0].group is not Group.RUNS else ""
        also = f" (also {', '.join(map(str, others))})" if others else ""
        yield f"  {path}:{first}: {mark}{name}" + (f": {text}" if text else "") + also


def error_of(report: FileReport) -> str:
    """The message about a file that cannot be read, with its line."""
    assert report.error is not None
    line, message = report.error
    return f"{report.path}:{line}: {message}" if line else f"{report.path}: {message}"


def summary(reports: Sequence[FileReport]) -> str:
    """One line about all files."""
    counts = _counts(reports)
    done = f" ({counts['automatic']} by --write)" if counts["automatic"] else ""
    unreadable = f", {_files(counts['unreadable'])} cannot be read" if counts["unreadable"] else ""
    without = counts["files"] - counts["of_libraries"] - counts["unreadable"]
    return (
        f"{_files(counts['files'])}{unreadable}, {without} without these libraries: "
        f"{counts['runs']} run as they are, {counts['changes']} change meaning, "
        f"{counts['rewrite']} to rewrite{done}"
    )


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _counts(reports: Iterable[FileReport]) -> dict[str, int]:
    reports = list(reports)
    found = [finding for report in reports for finding in report.findings]
    counts = {group.key: sum(finding.group is group for finding in found) for group in Group}
    return {
        "files": len(reports),
        "of_libraries": sum(bool(report.libraries) for report in reports),
        "unreadable": sum(report.error is not None for report in reports),
        **counts,
        "automatic": sum(f.automatic and f.group is Group.REWRITE for f in found),
    }


def as_json(reports: Sequence[FileReport]) -> str:
    """All of it as JSON; files without these libraries are counted alone."""
    listed = [report for report in reports if report.libraries or report.error]
    return json.dumps({"files": [_file(one) for one in listed], "summary": _counts(reports)}, indent=1)


def _file(report: FileReport) -> dict[str, Any]:
    error = None
    if report.error is not None:
        error = {"line": report.error[0], "message": report.error[1]}
    found = [
        {
            "line": finding.line,
            "group": finding.group.key,
            "library": finding.library,
            "name": finding.name,
            "text": finding.text,
            "automatic": finding.automatic,
        }
        for finding in report.findings
    ]
    return {"file": str(report.path), "libraries": report.libraries, "error": error, "findings": found}
