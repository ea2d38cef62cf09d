"""The scripts of docs/examples: alone, on two ranks, and stopped and resumed, with the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.pages import programs
from helpers.ranks import run_ranks

import paceline

pytestmark = pytest.mark.launch
PAGES = Path(paceline.__file__).parent / "docs" / "examples"
JOB = Path(__file__).with_name("example_job.py")


@dataclass
class Example:
    """A script of a page.

    Attributes:
        page: The page's name.
        script: The script's name.
        run: The name of its run.
        stop: The step after which the test stops it.
        needs: Packages that no other test needs.
        ends_with: The least value of the metric at its end.
    """

    page: str
    script: str
    run: str
    stop: int
    needs: tuple[str, ...] = ()
    ends_with: tuple[str, float] = ("val/accuracy", 0.8)


EXAMPLES = [
    Example(
        "transformers-model",
        "train.py",
        "chapters",
        60,
        ("transformers", "datasets"),
        ("val/accuracy", 0.6),
    ),
    Example("torchmetrics", "train.py", "metrics", 70, ends_with=("val/f1", 0.8)),
    Example("streams", "train.py", "records", 70),
    Example("streaming-datasets", "train.py", "stream", 94, ("datasets",)),
    Example("shards", "indexed.py", "shards", 70),
    Example("shards", "streamed.py", "streamed", 70, ("webdataset",)),
]


def run(example: Example, folder: Path, ranks: int, stop: int = 0) -> paceline.Run:
    folder.mkdir(exist_ok=True)
    for name, source in programs(PAGES / f"{example.page}.md").items():
        (folder / name).write_text(source)
    transformers = "transformers" in example.needs
    run_ranks(JOB, ranks, example.script, stop, folder=folder, seconds=120, transformers=transformers)
    return paceline.Run(folder / "runs" / example.run / "1")


def assert_same(run: paceline.Run, whole: paceline.Run, tolerance: float) -> None:
    ours, theirs = (stored_tensors(one.latest) for one in (run, whole))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=tolerance, rtol=0, msg=name)


def test_every_script_is_listed():
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert {(page, name) for page in pages for name in programs(PAGES / f"{page}.md")} == {
        (e.page, e.script) for e in EXAMPLES
    }
    assert all(f"]({page}.md)" in (PAGES / "README.md").read_text() for page in pages)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of an example on one device to its end, made once."""
    found: dict[str, paceline.Run] = {}

    def of(example: Example) -> paceline.Run:
        for package in example.needs:
            pytest.importorskip(package)
        if example.run not in found:
            found[example.run] = run(example, tmp_path_factory.mktemp(example.run), 1)
        return found[example.run]

    return of


def parameters(elsewhere: tuple[str, ...] = ()) -> list[Any]:
    """The examples; these of them, by their run, under ``--soak`` only."""
    return [
        pytest.param(
            example,
            id=f"{example.page}-{example.script}",
            marks=pytest.mark.soak if example.run in elsewhere else (),
        )
        for example in EXAMPLES
    ]


@pytest.mark.parametrize("example", parameters())
def test_an_example_is_the_same_on_two_ranks(example, alone, tmp_path):
    whole = alone(example)
    metric, least = example.ends_with
    assert whole.metrics[metric].values[-1] >= least
    assert_same(run(example, tmp_path, 2), whole, 1e-9)


# An ordinary loader over a dataset with a length: as in "metrics", and in tests/test_resume.py.
@pytest.mark.parametrize("example", parameters(elsewhere=("chapters", "shards")))
def test_an_example_is_the_same_when_it_was_stopped(example, alone, tmp_path):
    whole = alone(example)
    stopped = run(example, tmp_path, 1, example.stop)
    assert stopped.latest.name == f"step-{example.stop:08d}"
    assert_same(run(example, tmp_path, 1), whole, 0)
