"""What callbacks may use of the trainer: the protocols have the names of the trainer and its parts."""

import inspect
import re
from pathlib import Path

import pytest

import paceline
from paceline import Trainer
from paceline.callbacks import CountersView, LoopView, RanksView, TrainerView
from paceline.strategies.ranks.collectives import Collectives
from paceline.trainer.counters import RunCounters
from paceline.trainer.loop_controls import LoopControls
from paceline.trainer.view import attribute_hint

PARTS = {"ranks": RanksView, "counters": CountersView, "loop": LoopView}
MORE = {
    "ranks": {
        *("all_reduce_async", "gather_with_gradients", "exchange", "group", "data_group"),
        *("one_per_data_rank", "rank_of", "simulated_ranks", "is_global_zero"),
    }
}
"""What a part has for the Trainer and for strategies, beyond what callbacks are promised."""
HAVE = {TrainerView: Trainer, RanksView: Collectives, CountersView: RunCounters, LoopView: LoopControls}


def members(kind):
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize("protocol", HAVE, ids=lambda protocol: protocol.__name__)
def test_all_that_the_protocol_promises_is_there_with_the_same_arguments(protocol):
    for name, promised in members(protocol).items():
        found = inspect.getattr_static(HAVE[protocol], name)
        assert type(found) is type(promised), name
        if inspect.isfunction(promised):
            function = inspect.unwrap(found)
            expected = [(p.name, p.kind) for p in inspect.signature(promised).parameters.values()]
            given = [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
            assert given == expected, name
        assert inspect.getdoc(promised), name


@pytest.mark.parametrize("part", PARTS)
def test_the_parts_have_nothing_else(part):
    kind = HAVE[PARTS[part]]
    assert type(getattr(Trainer(run_dir=None), part)) is kind
    assert members(kind).keys() == members(PARTS[part]).keys() | MORE.get(part, set())


def test_the_page_lists_exactly_what_the_protocols_promise():
    page = (Path(paceline.__file__).parent / "docs" / "extending" / "trainer-view.md").read_text()
    own, *parts = re.split(r"^## trainer\.", page, flags=re.MULTILINE)
    listed = {part.partition("\n")[0]: part for part in parts}
    assert listed.keys() == PARTS.keys()
    assert names_in(own) == sorted(members(TrainerView))
    for part, protocol in PARTS.items():
        assert names_in(listed[part]) == sorted(members(protocol))


def names_in(text):
    return sorted(re.findall(r"^\| `(\w+)", text, re.MULTILINE))


def test_the_name_of_before_is_answered_with_the_part_that_has_it():
    for part, protocol in PARTS.items():
        for name in members(protocol).keys() - members(TrainerView).keys() - {"gather_data"}:
            where = "ranks.gather_data" if name == "all_gather" else f"{part}.{name}"
            assert attribute_hint(name, Trainer).startswith(f"; use {where}"), name
    with pytest.raises(AttributeError, match=r"no attribute 'barrier'; use ranks\.barrier\(\)"):
        Trainer(run_dir=None).barrier()
