"""What happens to the same training under each trainer: the rows of ``docs/evidence/comparison.md``.

python benchmarks/comparison/run.py [--row R] [--trainer T] [--json FILE] [--page]

Each trainer has one program here, as its documentation would write it, with its options for what is
compared here switched on. Lines marked ``own: ROW`` are what it leaves to its user: a row runs the program
without them too. ``task.py`` has the data and the model, records what was computed, and lets happen what is
to happen. ``rows.py`` has what is done in each row; all is judged by what was recorded. ``--json`` keeps
what was found, row by row (``benchmarks/results/comparison.json``); ``--page`` writes the page and
the README's table from it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from page import PAGE, README, page, readme
from program import PROGRAMS, Found, Program
from rows import ROWS

PACKAGES = ("torch", "lightning", "accelerate", "transformers", "torchdata")
RESULTS = Path(__file__).parents[1] / "results" / "comparison.json"


def run_row(row: str, trainer: str) -> Found:
    """What a row finds without the lines that are marked for it and, where there are any, with them."""
    found: Found = {}
    for kind, marked in (("with", row), ("without", "")):
        with tempfile.TemporaryDirectory() as folder:
            program = Program(trainer, Path(folder), marked)
            if kind == "with":
                found["own lines"] = program.own_lines
            if kind == "with" or found["own lines"]:
                found[kind] = ROWS[row](program)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--row", choices=ROWS, action="append")
    parser.add_argument("--trainer", choices=PROGRAMS, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        results = json.loads(RESULTS.read_text())
        PAGE.write_text(page(results))
        README.write_text(readme(results))
        return
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    for row in options.row or ROWS:
        for trainer in options.trainer or PROGRAMS:
            found = run_row(row, trainer)
            print(f"{row}, {trainer}: {json.dumps(found)}", flush=True)
            kept.setdefault("rows", {}).setdefault(row, {})[trainer] = found
            if options.json:
                installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
                kept["versions"] = {name: installed.get(name) for name in PACKAGES}
                kept["date"] = time.strftime("%Y-%m-%d")
                options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
