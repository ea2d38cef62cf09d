"""What each recipe's preset for a CPU reaches, and how long it takes: the figures of the pages on recipes.

python benchmarks/recipes.py [NAME...] [--runs 5] [--json benchmarks/results/recipes.json]
python benchmarks/recipes.py [NAME...] --runs 1 --pictures docs/images/recipes

Each run is ``paceline fit NAME preset=... trainer.seed=k`` in a new folder, with as many threads as CPUs.
The figure is the metric after the last epoch. Results of recipes that are not named stay in the file.
The pictures are of seed 0: its curves, and the last image that it logged, or else the curve of its figure,
for the page of all recipes (``tests/make_gallery.py``).
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from PIL import Image

from paceline import Run
from paceline.recipes import RECIPES


def run(name: str, seed: int, pictures: Path | None = None) -> tuple[float, float]:
    """The metric after the last epoch, and the seconds of the command."""
    figure = RECIPES[name].figure
    with tempfile.TemporaryDirectory() as folder:
        more = []
        if figure.teacher:
            more = [f"teacher={trained(figure.teacher)}"]
        begun = time.perf_counter()
        fit(name, seed, folder, *more)
        seconds = time.perf_counter() - begun
        done = Run(Path(folder, name, "1"))
        if pictures is not None:
            save_pictures(done.folder, pictures, name)
        return float(done.metrics[figure.metric].values[-1]), seconds


@cache
def trained(name: str) -> Path:
    """The run of seed 0 of a recipe that is a teacher, made once."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    fit(name, 0, folder)
    return Path(folder, name, "1")


def fit(name: str, seed: int, folder: str, *more: str) -> None:
    """Train the recipe's preset for a CPU, with its run in ``folder``."""
    preset = RECIPES[name].figure.preset
    settings = [f"trainer.seed={seed}", "trainer.progress=false", f"trainer.run_dir={folder}", *more]
    if preset:
        settings.insert(0, f"preset={preset}")
    subprocess.run(
        [sys.executable, "-m", "paceline", "fit", name, *settings],
        check=True,
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )


def save_pictures(run: Path, folder: Path, name: str) -> None:
    """The run's curves, and the last image that it logged; without one, the panel of its figure."""
    folder.mkdir(parents=True, exist_ok=True)
    save_curves(run / "curves.png", folder / f"{name}.png")
    logged = sorted(run.glob("media/**/*.png"), key=lambda path: path.stem)
    if logged:
        with Image.open(logged[-1]) as image:
            factor = max(1, 480 // image.width)
            larger = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
            larger.convert("RGB").save(folder / f"{name}-image.jpg", quality=85, optimize=True)
    else:
        panel = RECIPES[name].figure.metric.removeprefix("val/")
        plot = [sys.executable, "-m", "paceline", "plot", str(run), "--metric", panel, "--out", "card.png"]
        subprocess.run(plot, check=True, cwd=run, stdout=subprocess.DEVNULL)
        save_curves(run / "card.png", folder / f"{name}-card.png")


def save_curves(drawn: Path, picture: Path) -> None:
    """A drawing as a small file."""
    with Image.open(drawn) as curves:
        curves.convert("RGB").quantize(64).save(picture, optimize=True)


def main() -> None:
    os.environ.pop("OMP_NUM_THREADS", None)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RECIPES, []], metavar="NAME")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    there = options.json is not None and options.json.exists()
    found = json.loads(options.json.read_text()) if there else {}
    for name in options.names or RECIPES:
        runs = [run(name, seed, None if seed else options.pictures) for seed in range(options.runs)]
        values, seconds = [value for value, _ in runs], [second for _, second in runs]
        found[name] = {
            "preset": RECIPES[name].figure.preset,
            "metric": RECIPES[name].figure.metric,
            "values": values,
            "mean": statistics.mean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            "seconds": statistics.median(seconds),
        }
        one = found[name]
        print(f"{name}: {one['metric']} {one['mean']:.4f} ± {one['deviation']:.4f}, {one['seconds']:.0f} s")
        if options.json is not None:
            options.json.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
