"""What callbacks may use of the trainer: the protocol and the trainer have the same names."""

import inspect
import re
from pathlib import Path

import paceline
from paceline import Trainer
from paceline.callbacks import TrainerView


def members(kind):
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def test_a_trainer_has_all_that_the_protocol_promises_with_the_same_arguments():
    for name, promised in members(TrainerView).items():
        found = inspect.getattr_static(Trainer, name)
        assert type(found) is type(promised), name
        if inspect.isfunction(promised):
            expected = [(p.name, p.kind) for p in inspect.signature(promised).parameters.values()]
            given = [(p.name, p.kind) for p in inspect.signature(found).parameters.values()]
            assert given == expected, name


def test_what_the_protocol_promises_is_described_there():
    for name, promised in members(TrainerView).items():
        assert inspect.getdoc(promised), name


def test_the_page_lists_exactly_what_the_protocol_promises():
    page = (Path(paceline.__file__).parent / "docs" / "extending" / "trainer-view.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)", page, re.MULTILINE)) == sorted(members(TrainerView))
