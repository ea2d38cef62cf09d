"""Runs Lightning and keeps what it does in recorded/: ``python record.py [PROGRAM...]``.

``python record.py --fits`` says by its exit code whether what is kept can be compared with here: it is of
the installed versions, and kernels have the same results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helpers import lightning_recordings as recordings
from helpers import lightning_records as records
from helpers.arithmetic import KERNELS
from helpers.environment import clean_environment

MADE_WITH = "import json; from helpers.arithmetic import made_with; print(json.dumps(made_with()))"


def main() -> None:
    """Record the programs of the command line, or all of them and the corners."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = list(recordings.SOURCES)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=", ".join(names))
    parser.add_argument("--fits", action="store_true", help="record nothing")
    given = parser.parse_args()
    if given.fits:
        sys.exit(not fits(names))
    asked = given.names or names
    if unknown := set(asked) - set(names):
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = {}
        programs = [program for program in records.PROGRAMS if program.name in asked]
        if programs:
            arguments = recordings.ARGUMENTS
            found = records.record(records.THEIRS, folder, programs, *arguments, variables=KERNELS)
        if recordings.CORNERS in asked:
            found[recordings.CORNERS] = records.corners(records.THEIRS, folder, KERNELS)
    for name, one in found.items():
        recordings.write(name, one)
        print(recordings.file_of(name))


def fits(names: list[str]) -> bool:
    """Whether all recordings can be compared with here."""
    command, variables = [sys.executable, "-c", MADE_WITH], clean_environment(**KERNELS)
    printed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    found = recordings.theirs(names, json.loads(printed), soak=False, run=lambda rest: {})
    return set(found) == set(names)


if __name__ == "__main__":
    main()
