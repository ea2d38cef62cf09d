"""Programs written for Lightning do the same after their import lines are replaced, and nothing else."""

import pytest
from helpers import lightning_recordings as recordings
from helpers import lightning_records as records

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not records.is_installed(records.OURS), reason=f"needs {records.OURS}"),
]
EXCEPTIONS, OTHER_NUMBERS = records.EXCEPTIONS, records.OTHER_NUMBERS
NAMES = [program.name for program in records.PROGRAMS]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, request):
    """What each program did under Lightning, as it is kept or now, and what it does here."""
    folder, soak = tmp_path_factory.mktemp("programs"), request.config.getoption("--soak")
    variables = recordings.variables(soak)

    def run(package, names=NAMES):
        programs = [program for program in records.PROGRAMS if program.name in names]
        return records.record(package, folder, programs, *recordings.ARGUMENTS, variables=variables)

    ours = run(records.OURS)
    made_with = ours[NAMES[0]]["made_with"]
    return recordings.theirs(NAMES, made_with, soak, lambda names: run(records.THEIRS, names)), ours


@pytest.fixture(params=NAMES)
def pair(request, recorded):
    """The program, and what it did under Lightning and here."""
    recordings.check(request.param)
    if request.param not in recorded[0]:
        pytest.skip(recordings.NEEDED)
    theirs, ours = (found[request.param] for found in recorded)
    assert "error" not in theirs, theirs["error"]
    assert "error" not in ours, ours["error"]
    return request.param, theirs, ours


@pytest.fixture(scope="session")
def all_of_lightning(recorded):
    """What every program did under Lightning."""
    if set(recorded[0]) != set(NAMES):
        pytest.skip(recordings.NEEDED)
    return recorded[0]


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


def test_few_programs_draw_random_numbers(all_of_lightning):
    assert sum(one["draws"] is not None for one in all_of_lightning.values()) <= 3


def test_exceptions_are_of_programs_and_hooks_there_are(all_of_lightning):
    assert set(EXCEPTIONS) <= {"*", *NAMES}
    for name, hooks in EXCEPTIONS.items():
        places = all_of_lightning.values() if name == "*" else [all_of_lightning[name]]
        assert set(hooks) <= {call[1] for place in places for call in place["calls"]}
