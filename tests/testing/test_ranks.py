"""Ranks that a check starts: what they know of each other."""

import os
from functools import partial

import pytest

from paceline.testing import ranks

pytestmark = pytest.mark.launch
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "LOCAL_THING")


def test_they_are_all_on_this_machine_and_see_nothing_of_a_launcher_around_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_THING", "of a launcher")
    ranks.prepare(tmp_path, {name: partial(os.getenv, name) for name in NAMES}, [], 60)
    found = [report.found for report in ranks.run(tmp_path, 2, 60)]
    assert [[one[name] for name in NAMES] for one in found] == [
        ["0", "2", "0", "2", None, None],
        ["1", "2", "1", "2", None, None],
    ]
