"""Counts what becomes of the files in a folder that LLaMA-Factory, Axolotl, Accelerate or DeepSpeed read.

python tests/compat/configs/count_files.py FOLDER [EXAMPLES]

The YAML files in EXAMPLES, a folder in FOLDER, are read as though their trainer ran in FOLDER. A file that
is written is checked as a config of its recipe. Unknown keys, and what is wrong with a file, are printed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from paceline import PacelineError
from paceline.commands.config.init import _settings_of
from paceline.commands.targets import recipe_modules
from paceline.compat.configs.reading import OUTCOMES, REFUSED, UNKNOWN, Reading
from paceline.compat.configs.recognise import read_configuration
from paceline.config.load import load


def problems_of(reading: Reading) -> list[tuple[str, str]]:
    """What our recipe finds wrong with what a file became."""
    settings = {"recipe": reading.recipe, **reading.settings, "trainer": reading.trainer}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ours.yaml"
        file.write_text(yaml.safe_dump(settings))
        return load(str(file), recipes=recipe_modules()).problems


def count(files: list[Path]) -> None:
    """Print the counts of these files."""
    kinds: Counter[str] = Counter()
    keys: dict[str, Counter[str]] = {}
    refused: Counter[str] = Counter()
    for file in files:
        try:
            reading = read_configuration(file, settings_of=_settings_of)
        except PacelineError as error:
            kinds["wrong"] += 1
            print(f"{file}: {' '.join(str(error).split())[:200]}")
            continue
        kind = "refused" if reading.refused else "written"
        kinds[f"{reading.source}: {kind}"] += 1
        counts = keys.setdefault(f"{reading.source}, files {kind}", Counter())
        counts.update(note.outcome for note in reading.notes)
        for note in reading.notes:
            if note.outcome == UNKNOWN:
                print(f"{note.place}: {note.path} is unknown")
            if note.outcome == REFUSED:
                refused[note.path] += 1
        for problem in problems_of(reading) if reading.recipe and kind == "written" else []:
            print(f"{file}: {problem} is wrong in what was written")
    print(f"{len(files)} files: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
    for kind, counts in sorted(keys.items()):
        print(f"{kind}: {counts.total()} keys: " + ", ".join(f"{one} {counts[one]}" for one in OUTCOMES))
    print("refused for: " + ", ".join(f"{key} {n}" for key, n in refused.most_common(12)))


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    count(sorted(Path(sys.argv[2] if len(sys.argv) > 2 else ".").rglob("*.y*ml")))
