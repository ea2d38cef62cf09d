"""Runs Lightning and keeps what it does in recorded/: ``python record.py [PROGRAM...]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helpers import lightning_recordings as recordings
from helpers import lightning_records as records
from helpers.arithmetic import KERNELS


def main() -> None:
    """Record the programs of the command line, or all of them and the corners."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = list(recordings.SOURCES)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=", ".join(names))
    given = parser.parse_args()
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


if __name__ == "__main__":
    main()
