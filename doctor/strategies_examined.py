"""Runs the checks of strategies on real ranks; one whose ranks end early does not spoil the others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..strategies import Strategy, make_strategy
from ..testing import ranks
from ..testing.trainings import Layout
from ..trainer.rng import untouched
from . import rank_work
from .finding import FAILED, SKIPPED, Finding, of_error
from .machine_checks import check_clocks_agree
from .rank_ends import why_ended
from .rank_work import SECTIONS, STEPS
from .strategy_checks import CURES, judge_collectives, judge_order, judge_weights, judge_world

Maker = str | Callable[[], Strategy]
"""The name of a strategy, or what makes one; other processes import it."""


@dataclass(frozen=True)
class Group:
    """Strategies that compute on as many ranks.

    Args:
        folder: For all that they write.
        makers: The strategies.
        ranks: How many.
        accelerator: Where.
        seconds: How long one check may take.
    """

    folder: Path
    makers: Sequence[Maker]
    ranks: int
    accelerator: str
    seconds: float

    def layout(self, maker: Maker) -> Layout:
        """Where a strategy of the group trains."""
        folder = self.folder / name_of(maker)
        return Layout(folder, maker, self.ranks, self.ranks, "32", self.accelerator)


def name_of(maker: Maker) -> str:
    """What a strategy is called in the results."""
    return maker if isinstance(maker, str) else str(getattr(maker, "__name__", "strategy"))


def groups(
    folder: Path, makers: Sequence[Maker], devices: int, accelerator: str, seconds: float
) -> list[Group]:
    """Strategies by how many ranks they can compute on: all devices, or one.

    Raises:
        PacelineError: for a name that is no strategy's.
    """
    several: list[Maker] = []
    alone: list[Maker] = []
    for maker in makers:
        strategy = make_strategy(maker) if isinstance(maker, str) else maker()
        (several if strategy.many_ranks else alone).append(maker)
    made = [(several, devices, "several"), (alone, 1, "alone")]
    return [Group(folder / name, of, ranks_, accelerator, seconds) for of, ranks_, name in made if of]


def examine(group: Group, progress: Callable[[int, str], None]) -> Iterator[Finding]:
    """Check each strategy of a group on ranks that are started for all of them.

    Where ranks end early, they are started again for the strategies after that one.

    Args:
        group: The strategies.
        progress: Takes how many sections all ranks have finished so far, and what they do now.
    """
    group.folder.mkdir(parents=True)
    one = Layout(group.folder / "one-device", "single", 1, group.ranks, "32")
    one.folder.mkdir()
    with _quietly():
        one.train("saved", saves=True, steps=STEPS, every=1)
        right = rank_work.data_order(one, one)
    remaining, done = list(group.makers), 0
    while remaining:
        place = group.folder / f"ranks-{done}"
        place.mkdir()
        work = {
            f"{name_of(maker)}: {section}": partial(function, group.layout(maker), one)
            for maker in remaining
            for section, function in SECTIONS.items()
        }
        before = done * len(SECTIONS)

        def report(found: list[ranks.Report], before: int = before) -> None:
            last = min(found, key=lambda of_rank: len(of_rank.found))
            progress(before + len(last.found), last.section)

        ranks.prepare(place, work, remaining, group.seconds, each=True)
        reports = ranks.run(place, group.ranks, group.seconds, report)
        order = ["start", *work, ""]
        first = min((one.section for one in reports), key=order.index)
        for maker in remaining:
            yield from _judge(group, maker, one, right, reports, place)
            done += 1
            if first == "start" or first.startswith(f"{name_of(maker)}: "):
                break
        remaining = list(group.makers)[done:] if first and first != "start" else []
        progress(done * len(SECTIONS), "")
    for maker in list(group.makers)[done:]:  # ranks that do not start at all
        yield from _skipped(name_of(maker), list(SECTIONS), "the ranks did not start")


@contextmanager
def _quietly() -> Iterator[None]:
    """A training of this process: nothing of it is printed, and no generator is changed."""
    with untouched(torch.device("cpu")), redirect_stdout(io.StringIO()):
        yield


def _skipped(strategy: str, checks: Sequence[str], why: str) -> list[Finding]:
    return [Finding(check, SKIPPED, why, strategy=strategy) for check in checks]


def _judge(
    group: Group,
    maker: Maker,
    one: Layout,
    right: list[list[int]],
    reports: list[ranks.Report],
    place: Path,
) -> Iterator[Finding]:
    """The findings about one strategy."""
    strategy, layout = name_of(maker), group.layout(maker)
    for index, check in enumerate(SECTIONS):
        section = f"{strategy}: {check}"
        found = [report.found[section] for report in reports if section in report.found]
        if len(found) < len(reports):
            # `start` is before the first section of all.
            at = section if any(report.section == section for report in reports) else "start"
            text, cure, details = why_ended(reports, place, at, group.seconds)
            cure = cure or CURES["start" if at == "start" else check]
            yield Finding(check, FAILED, text, cure, strategy, tuple(details))
            yield from _skipped(strategy, list(SECTIONS)[index + 1 :], f"{check} did not end")
            return
        if check == "world":
            yield judge_world(group.ranks, found, strategy)
            yield check_clocks_agree([float(of_rank["time"]) for of_rank in found], strategy)
        elif check == "collectives":
            yield judge_collectives(found, strategy)
        elif check == "data order":
            yield judge_order(found, right, strategy)
        else:
            yield _judge_training(check, layout, one, strategy)


def _judge_training(check: str, layout: Layout, one: Layout, strategy: str) -> Finding:
    """Compare with what one device trained; for the checkpoint, have one device read it."""
    try:
        if check == "training step":
            return judge_weights(check, layout.weights("saved", 1), one.weights("saved", 1), strategy)
        right = one.weights("saved", STEPS)
        read = judge_weights(
            check, layout.weights("read", STEPS), right, strategy, "after reading that of one device,"
        )
        if read.outcome == FAILED:
            return read
        name = f"read-{strategy}"
        with _quietly():
            one.train(name, saves=True, steps=STEPS, every=1, resume=layout.checkpoint("saved", 1))
        return judge_weights(check, one.weights(name, STEPS), right, strategy, "read by one device,")
    except Exception as error:  # of a checkpoint that cannot be read, say
        return of_error(check, error, CURES[check], strategy)
