"""Makes small faults, one at a time in a copy of the tree, and reports which of them the tests notice.

python tests/mutants.py [--list] [--only 3,17] [--folder callbacks] [--jobs 2] [--seconds 240] [--json FILE]

The faults are in ``mutants.txt``. For each, the tests that ``affected.py`` selects run nearest first until
one fails; the fault counts as noticed where that test passes without it. The checkout is never changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from affected import OF_THE_WHOLE, PACKAGE, ROOT, Graph, select

FILE = Path(__file__).with_suffix(".txt")
_HEAD = re.compile(r"(?P<file>\S+\.py)(?: \[(?P<area>[\w ]+)\])?: (?P<breaks>.+)")


@dataclass(frozen=True)
class Fault:
    """A change that a tired developer could make.

    Attributes:
        number: From 1, by its place in the list.
        file: Where it is, from the root.
        area: What it belongs to, such as ``"resume"``; empty for others.
        breaks: What goes wrong for users.
        old: The text that is there once.
        new: What takes its place.
        first: The tests to run before all others; empty: those that are nearest.
    """

    number: int
    file: str
    area: str
    breaks: str
    old: str
    new: str
    first: str = ""

    def applied(self, text: str) -> str:
        """The text of the file with the fault."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"fault {self.number}: {self.file} has its text {found} times: {self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Verdict:
    """What became of a fault.

    Attributes:
        fault: Which one.
        noticed_by: The first test that failed because of it; empty for none.
        note: Why there is none.
        seconds: How long that took.
    """

    fault: Fault
    noticed_by: str
    note: str
    seconds: float


def read(file: Path = FILE) -> list[Fault]:
    """The faults of a list; see its own comments for the form."""
    found: list[Fault] = []
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).strip("\n")
    for block in re.split(r"\n+(?![-+=])", text):
        lines = block.splitlines()
        head = _HEAD.fullmatch(lines[0])
        parts = {sign: [line[2:] for line in lines[1:] if line[0] == sign] for sign in "-+="}
        old, new, first = map("\n".join, parts.values())
        known = 1 + sum(map(len, parts.values()))
        if head is None or not (parts["-"] and parts["+"]) or len(lines) != known:
            raise ValueError(f"this is no fault:\n{block}")
        found.append(
            Fault(len(found) + 1, head["file"], head["area"] or "", head["breaks"], old, new, first)
        )
    return found


_ending = threading.Event()
RunTests = Callable[[Path, Sequence[str], float], str]
"""Runs tests of a tree in their order: the first that fails, "" for none. TimeoutError at the deadline."""


def run_pytest(tree: Path, tests: Sequence[str], seconds: float) -> str:
    """The first test that fails; the package is that of the tree, in subprocesses too."""
    temporary = tree.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree.parent), "TMPDIR": str(temporary)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    if _ending.is_set():
        raise TimeoutError
    process = subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output, ends = "", time.monotonic() + seconds
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=min(0.5, seconds))
                break
            if time.monotonic() > ends or _ending.is_set():
                raise TimeoutError
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if failed is None and process.returncode not in (0, 5):  # 5: all were skipped
        return f"pytest ended with {process.returncode}"
    return failed[1] if failed else ""


def examine(
    fault: Fault, root: Path, files: Iterable[str], tests: Sequence[str], seconds: float, run: RunTests
) -> Verdict:
    """Make one fault in a copy of the tree, and run the tests that can see it."""
    began = time.monotonic()

    def verdict(noticed_by: str, note: str = "") -> Verdict:
        return Verdict(fault, noticed_by, note, round(time.monotonic() - began, 1))

    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as place:
        tree = Path(place, PACKAGE)
        Path(place).chmod(0o755)  # for tests that give up their rights
        copy(root, tree, files)
        text = (tree / fault.file).read_text()
        left, size, also = list(tests), 1, ""
        while left:
            write(tree / fault.file, fault.applied(text))
            group, size = left[:size], 2 * size  # the nearest one alone: to collect many takes long
            left = left[len(group) :]
            try:
                failed = run(tree, group, max(1.0, began + seconds - time.monotonic()))
                if not failed:
                    continue
                write(tree / fault.file, text)
                if not run(tree, [failed], seconds):
                    return verdict(failed)
            except TimeoutError:
                return verdict("", f"no test failed in {seconds:g} s{also}")
            also += f"; {failed} fails without it too"
            seen = next((n for n, test in enumerate(group) if failed.startswith(test)), len(group))
            left = group[seen + 1 :] + left
        return verdict("", f"{len(tests)} files ran{also}" if tests else "no test can see it")


def copy(root: Path, tree: Path, files: Iterable[str]) -> None:
    """Copy files, and the code that is compiled of them: their times stay what they are."""
    for name in files:
        source, target = root / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
            target.with_name("__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, target.parent / "__pycache__")


def write(file: Path, text: str) -> None:
    """Write a module; what was compiled of another text of the same size and second is not taken for it."""
    file.write_text(text)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


def report(verdicts: Sequence[Verdict]) -> str:
    """The table of the verdicts and its sum."""
    rows = [
        f"{v.fault.number:>3}  {v.seconds:>6.1f} s  {v.fault.file}: {v.fault.breaks}\n"
        f"{'':15}{f'noticed by {v.noticed_by}' if v.noticed_by else f'NOT NOTICED: {v.note}'}"
        for v in sorted(verdicts, key=lambda v: v.fault.number)
    ]
    noticed = sum(bool(v.noticed_by) for v in verdicts)
    return "\n".join([*rows, f"{noticed} of {len(verdicts)} noticed"])


def chosen(faults: Sequence[Fault], only: str, folder: str) -> list[Fault]:
    """Those with one of the numbers, in a folder or below it."""
    numbers = {int(number) for number in only.split(",") if number}
    return [
        fault
        for fault in faults
        if (not numbers or fault.number in numbers)
        and (not folder or fault.file.startswith(f"{folder.rstrip('/')}/"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a fault was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--only", default="", help="numbers of faults: 3,17")
    parser.add_argument("--folder", default="", help="faults in this folder")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time, each in its own copy")
    parser.add_argument("--seconds", type=float, default=240, help="the deadline of each")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    given = parser.parse_args(arguments)
    faults = chosen(read(), given.only, given.folder)
    if given.list:
        for fault in faults:
            print(f"{fault.number:>3}  {fault.file}: {fault.breaks}")
        return 0
    graph = Graph()

    def one(fault: Fault) -> Verdict:
        tests = select(graph, [fault.file], given.seconds * 0.8).run
        tests = [test for test in tests if test not in OF_THE_WHOLE]  # they look at the source alone
        tests = list(dict.fromkeys([fault.first, *tests] if fault.first else tests))
        found = examine(fault, ROOT, graph.files, tests, given.seconds, run_pytest)
        print(report([found]).rpartition("\n")[0], flush=True)
        return found

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            verdicts = list(pool.map(one, faults))
        except KeyboardInterrupt:  # the tests under way are ended, and the copies removed
            _ending.set()
            pool.shutdown(cancel_futures=True)
            return 130
    print(f"\n{report(verdicts)}")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
    return 0 if all(verdict.noticed_by for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
