"""Programs written for Lightning do the same after their import lines are replaced, and nothing else."""

from __future__ import annotations

import pytest
from helpers import lightning_records as records

MISSING = records.missing()
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]
EXCEPTIONS, OTHER_NUMBERS = records.EXCEPTIONS, records.OTHER_NUMBERS
NAMES = [path.stem for path in records.PROGRAMS]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """What each program did under each of the packages, which run one after the other."""
    folder = tmp_path_factory.mktemp("programs")
    option = ("--option", 'accelerator="cpu"')
    return [
        records.record(package, folder, records.PROGRAMS, *option)
        for package in ("lightning", records.OURS)
    ]


@pytest.fixture(params=NAMES)
def pair(request, recorded):
    """The program, and what it did under Lightning and here."""
    theirs, ours = (found[request.param] for found in recorded)
    assert "error" not in theirs, theirs["error"]
    assert "error" not in ours, ours["error"]
    return request.param, theirs, ours


def test_same_position(pair):
    program, theirs, ours = pair
    if program == "swa":
        pytest.skip(OTHER_NUMBERS[program])
    for name in ("global_step", "current_epoch"):
        assert ours[name] == theirs[name], name


def test_same_weights(pair):
    program, theirs, ours = pair
    if theirs["draws"] or program in OTHER_NUMBERS:
        pytest.skip(theirs["draws"] or OTHER_NUMBERS[program])
    assert ours["state"] == theirs["state"]


def test_same_metrics(pair):
    program, theirs, ours = pair
    if theirs["draws"]:
        pytest.skip(theirs["draws"])
    if program in OTHER_NUMBERS:  # equal up to there
        same = 5 if program == "all_hooks_accumulated" else len(ours["logged"])
        theirs, ours = ({"logged": one["logged"][:same]} for one in (theirs, ours))
        assert records.different_logged(theirs, ours) == []
        return
    assert records.different_logged(theirs, ours) == []
    assert records.different_metrics(theirs, ours) == []


def test_same_hooks(pair):
    name, theirs, ours = pair
    if name in OTHER_NUMBERS:
        pytest.skip(f"numbers are among the arguments: {OTHER_NUMBERS[name]}")
    assert records.different_calls(theirs, ours, records.ignored_of(name)) == []


def test_few_programs_draw_random_numbers(recorded):
    theirs, _ = recorded
    assert sum(one["draws"] is not None for one in theirs.values()) <= 3


def test_exceptions_are_of_programs_and_hooks_there_are(recorded):
    theirs, _ = recorded
    assert set(EXCEPTIONS) <= {"*", *NAMES}
    for name, hooks in EXCEPTIONS.items():
        places = theirs.values() if name == "*" else [theirs[name]]
        assert set(hooks) <= {call[1] for place in places for call in place["calls"]}
