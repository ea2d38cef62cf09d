"""The repository's own programs: its recipes, its pages, its benchmarks, and those written for Lightning.

They run as the tests run them, but in this process, and with the Trainer that they import themselves.
Left out are

- docs/guides/devices.md, tensor-parallel.md, notebook.md, docs/extending/strategy.md and the programs
  before.py and after.py of docs/migration/from-accelerate.md, which start several ranks;
- docs/guides/slurm.md, ray.md, object-stores.md, hyper-parameters.md: a cluster, a bucket, a search;
- docs/guides/estimate.md, doctor.md, docs/api: nothing is trained, or a module of four lines;
- programs of other trainers, and those that are wrong on purpose: docs/guides/failures.md and diff.md,
  benchmarks/comparison/mistakes.py;
- benchmarks/side_by_side/gpt_paceline.py, which takes half a minute.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer

from paceline.__main__ import app
from paceline.recipes import RECIPES

from ..programs import right

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
from helpers.jobs import load_job
from helpers.lightning_records import FOLDER, OURS
from helpers.lightning_records import PROGRAMS as LIGHTNING
from helpers.pages import blocks, programs

ROOT = Path(__file__).resolve().parents[3]


def _add(name: str, area: str, run: Callable[[], object], source: str, debatable: str = "") -> None:
    def program(trainer: Any) -> None:
        """As the repository has it."""
        with _apart():
            run()

    program.__name__ = name
    right(area=area, source=source, debatable=debatable)(program)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """What a program sets for the whole process is set back behind it."""
    variables, words, path = dict(os.environ), sys.argv, list(sys.path)
    kind, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    sys.argv = ["train.py", "3"]  # epochs, for the pages whose script takes them
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.argv, sys.path[:] = words, path
        torch.set_default_dtype(kind)
        torch.use_deterministic_algorithms(deterministic)


# -- recipes -------------------------------------------------------------------------------------

AREAS = {
    "contrastive": "simclr",
    "diffusion": "diffusion",
    "gan": "gan",
    "language": "classify-text dpo gpt kto llm-distill llm-finetune reward-model",
    "series": "reinforce",
    "table": "tabular",
    "transfer": "finetune-vision distill",
    "vision": "digits multi-task neural-field resnet-cifar10 vit-cifar10",
}


def fit(name: str, **more: object) -> None:
    """``paceline fit``, as small as the tests of recipes on ranks have it."""
    smaller = load_job(ROOT / "tests" / "recipes" / "test_recipes_on_ranks.py").SMALLER[name]
    figure = RECIPES[name].figure
    settings = {"preset": figure.preset} if figure.preset else {}
    if figure.teacher:
        fit(figure.teacher)
        settings["teacher"] = f"runs/{figure.teacher}/1"
    steps = 8 if name in AREAS["language"].split() else 16
    settings |= smaller | {
        "trainer.accelerator": "cpu",
        "trainer.max_steps": steps,
        "trainer.limit_val_batches": 2,
        "trainer.validate_every": steps // 2,
    }
    words = [f"{key}={value}" for key, value in (settings | more).items()]
    typer.main.get_command(app)(["fit", name, *words], standalone_mode=False)


for _area, _names in AREAS.items():
    for _name in _names.split():
        _more = {"workers": 0, "steps": 16} if _name in ("vit-cifar10", "reinforce") else {}
        _add(f"recipe_{_name}".replace("-", "_"), _area, partial(fit, _name), f"recipes: {_name}")

# -- pages ---------------------------------------------------------------------------------------

SAME = "to be short it validates on its training data"
ORDER = "it does not shuffle, to be short or to be compared with another trainer"
COPIES = "it trains on ten copies of each sample"
PAGES = {
    "README": "",
    "docs/index": "",
    "docs/quick-start": "",
    "docs/promises/exact-gradients-and-metrics": SAME,
    "docs/promises/exact-resume": "",
    "docs/promises/same-numbers": "",
    "docs/extending/callback": "",
    "docs/extending/logger": ORDER,
    "docs/extending/recipe": ORDER,
    "docs/guides/callbacks": ORDER,
    "docs/guides/checkpoints": "",
    "docs/guides/data": ORDER,
    "docs/guides/logging": ORDER,
    "docs/guides/memory": ORDER,
    "docs/guides/optimizers": COPIES,
    "docs/guides/reports": ORDER,
    "docs/guides/schedules": ORDER,
    "docs/guides/training": ORDER,
    "docs/recipes/gpt": "",
    "docs/skills/port-a-program": "",
}
SCRIPTS = {
    "docs/examples/shards indexed.py": "",
    "docs/examples/shards streamed.py": "",
    "docs/examples/streaming-datasets train.py": "",
    "docs/examples/streams train.py": "",
    "docs/examples/torchmetrics train.py": "",
    "docs/examples/transformers-model train.py": "",
    "docs/migration/from-a-loop after.py": ORDER,
    "docs/migration/from-composer after.py": SAME,
    "docs/migration/from-lightning as_it_is.py": ORDER,
    "docs/migration/from-lightning native.py": ORDER,
    "docs/migration/from-transformers after.py": ORDER,
    "docs/tutorials/own-loop train.py": ORDER,
}


def run_page(page: str) -> None:
    """All Python blocks of a page, in one module."""
    module = sys.modules["page"] = types.ModuleType("page")
    for block in blocks(ROOT / f"{page}.md"):
        exec(compile(block, page, "exec"), vars(module))


def run_script(page: str, script: str) -> None:
    """A script of a page that has several, beside the others."""
    for name, source in programs(ROOT / f"{page}.md").items():
        Path(name).write_text(source)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def _words(path: str) -> str:
    return re.sub(r"\W+", "_", path.removesuffix(".py")).lower()


for _page, _debatable in PAGES.items():
    _add(f"page_{_words(_page)}", "table", partial(run_page, _page), f"{_page}.md", _debatable)
for _place, _debatable in SCRIPTS.items():
    _page, _script = _place.split()
    _add(f"page_{_words(_place)}", "vision", partial(run_script, _page, _script), f"{_page}.md", _debatable)

# -- benchmarks ----------------------------------------------------------------------------------


def run_benchmark(path: Path) -> None:
    """A script beside its ``task.py``."""
    sys.path.insert(0, str(path.parent))
    sys.modules.pop("task", None)
    runpy.run_path(str(path), run_name="__main__")


for _task, _area in (("gan", "gan"), ("vit", "vision")):
    _path = ROOT / "benchmarks" / "side_by_side" / f"{_task}_paceline.py"
    _add(f"side_by_side_{_task}", _area, partial(run_benchmark, _path), f"benchmarks/{_path.name}", ORDER)

# -- Lightning -----------------------------------------------------------------------------------


SHUFFLED = "dqn dropout_cnn litgpt ppo segmentation"
VALIDATED_ON_TRAINING_DATA = (
    "command_line custom_callbacks manual_dicts model_output monitors own_logger patience pictures"
)
OTHERWISE = {
    "dropout_cnn": "its test data is its validation data",
    "ddpm": "its test data is its validation data",
    "speech_ctc": "its test data is its validation data",
    "skipped_batches": "its data has rows that are not finite, which it skips",
}


def run_lightning(named: str) -> None:
    """A program for Lightning, under our package of its names."""
    load_job(FOLDER / "recorder.py").run(named, OURS, {"accelerator": "cpu"}, bare=True)


def debatable_of(name: str) -> str:
    """What may be said of a program for Lightning; "" where nothing."""
    if name in VALIDATED_ON_TRAINING_DATA.split():
        return SAME
    return OTHERWISE.get(name, "" if name in SHUFFLED.split() else ORDER)


LIGHTNING_AREAS = {
    "contrastive": "moco simclr",
    "diffusion": "ddpm",
    "gan": "gan wgan",
    "language": "bert_classifier gpt litgpt",
    "series": "lstm dqn ppo speech_ctc",
    "transfer": "distillation frozen_backbone unfreezing unfreezing_backbone",
    "vision": "anchor_detector autoencoder detection dropout_cnn segmentation unet pictures",
}
AREA_OF = {name: area for area, names in LIGHTNING_AREAS.items() for name in names.split()}

for _one in LIGHTNING:
    _run = partial(run_lightning, str(_one))
    _area = AREA_OF.get(_one.name, "table")
    _add(f"lightning_{_one.name}", _area, _run, _one.path.name, debatable_of(_one.name))
