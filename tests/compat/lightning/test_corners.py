"""Corners of Lightning code that were other than under Lightning once: each has its case in corners.py."""

import pytest
from helpers import lightning_recordings as recordings
from helpers import lightning_records as records
from helpers.lightning_recordings import CORNERS

from .corners import CASES

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not records.is_installed(records.OURS), reason=f"needs {records.OURS}"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """What each case found under Lightning, as it is kept or now, and what it finds here."""
    folder, soak = tmp_path_factory.mktemp("corners"), request.config.getoption("--soak")
    variables = recordings.variables(soak)
    ours = records.corners(records.OURS, folder, variables)

    def run(_names):
        return {CORNERS: records.corners(records.THEIRS, folder, variables)}

    recordings.check(CORNERS)
    theirs = recordings.theirs([CORNERS], ours["made_with"], soak, run)
    return theirs.get(CORNERS), ours


@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_is_as_under_lightning(found, name):
    if found[0] is None:
        pytest.skip(recordings.NEEDED)
    theirs, ours = (one[name] for one in found)
    assert not isinstance(theirs, str), theirs
    assert ours == theirs
