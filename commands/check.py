"""``paceline check``: mistakes of a program that raise no error."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import PacelineError, cut
from .output import JSON, print_json, print_table

_OTHER_SECONDS = 180.0  # for what the script does up to its fit, and for the probes
_LINES = 14


def check(
    target: Annotated[
        str, typer.Argument(help="Your training: a Python script, or what `paceline fit` takes.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="What follows TARGET; write -- before options."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long the first fit is trained.")] = 40.0,
    as_json: JSON = False,
) -> None:
    """Look for mistakes of a training program that raise no error.

    Its first fit is trained for a short time on one device and written nowhere. Then copies of the module
    and of the data are tried out, and the rest of a script is watched for 30 seconds. The exit code is 0
    when nothing was found, else 1.
    """
    from ..common.version import __version__

    found = _run(target, words or [], seconds)
    if as_json:
        print_json({"version": __version__, "target": target, **found})
    else:
        _print(found, f"paceline {__version__}: {target}, {_extent(found)}, in {found['seconds']:.0f} s")
    raise typer.Exit(1 if found["findings"] else 0)


def _run(target: str, words: list[str], seconds: float) -> dict[str, Any]:
    """Run a program with a Trainer that checks its first fit; what that has found.

    Raises:
        PacelineError: where it fails, takes too long, or ends without a fit.
    """
    from ..doctor.target import Target, last_error, run_command
    from ..testing.ranks import outside_a_launch
    from ..tools.rerun.check_request import CheckRequest

    program = Target(target, tuple(words))
    program.check()
    start = [target] if program.is_script else ["-m", "paceline", "fit", target]
    with tempfile.TemporaryDirectory() as folder:
        out, printed = Path(folder) / "report.json", Path(folder) / "output.txt"
        variables = outside_a_launch() | CheckRequest(str(out), seconds).variables()
        with printed.open("w+b") as output:
            command = [sys.executable, "-u", *start, *words]
            code = run_command(command, variables, output, seconds + _OTHER_SECONDS)
        if out.exists():
            report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return report
        lines = [one for one in printed.read_text(errors="replace").splitlines() if one.strip()]
    for line in lines[-_LINES:]:
        typer.echo(cut(f"  {line}", 200), err=True)
    if code is None:
        ended = f"did not end within {seconds + _OTHER_SECONDS:.0f} s"
    else:
        ended = f"has ended: {last_error(lines)[0]}" if code else "has ended without a fit"
    raise PacelineError(
        f"{target} cannot be checked: it {cut(ended, 250)}",
        code="check-not-possible",
        fix="run it by itself; it has to call Trainer.fit with `from paceline import Trainer`",
    )


def _extent(found: dict[str, Any]) -> str:
    whole = "its whole fit" if found["is_whole_run"] else "the beginning of its fit"
    return f"{found['steps']} step{'s' * (found['steps'] != 1)}, {whole}"


def _print(found: dict[str, Any], heading: str) -> None:
    typer.echo(f"{heading}\n")
    findings, left = found["findings"], found["not_looked_at"]
    if findings:
        rows = [row for one in findings for row in ((one["name"], one["evidence"]), ("", one["cure"]))]
        print_table(("finding", "what shows it, and how to mend it"), rows)
        typer.echo()
    if left:
        for why in dict.fromkeys(left.values()):
            names = ", ".join(name for name, reason in left.items() if reason == why)
            typer.echo(f"could not be looked at, since {cut(why, 150)}: {names}")
        typer.echo()
    count = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "nothing was found"
    typer.echo(f"{count}; docs/guides/silent-mistakes.md explains each name")
