"""Corners of Lightning code that were other than under Lightning once: each has its case in corners.py."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import lightning_records as records
from helpers.processes import Outcome

from .corners import CASES

MISSING = records.missing()
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each case found under each of the packages."""

    def under(package):
        folder = tmp_path_factory.mktemp("corners")
        command = [sys.executable, records.FOLDER / "corners.py", package, folder / "out.json"]
        outcome = Outcome(folder, command, {})
        assert outcome.code == 0, outcome.printed()
        return json.loads((folder / "out.json").read_text())

    return under(records.THEIRS), under(records.OURS)


@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_is_as_under_lightning(found, name):
    theirs, ours = (one[name] for one in found)
    assert not isinstance(theirs, str), theirs
    assert ours == theirs
