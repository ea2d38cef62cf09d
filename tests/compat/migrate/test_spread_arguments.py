"""``Trainer(**options)``: marked where something may be in it."""

from __future__ import annotations

import pytest

from paceline.compat.migrate.analysis import analyse

MARK = "# paceline: Trainer(**)"
PROGRAM = """
import lightning as L


def main(epochs=3, **options):
    return L.Trainer(max_epochs=epochs, **options)


{call}
"""


@pytest.mark.parametrize(
    ("call", "marked"),
    [
        ("main()", False),
        ("main(5)", False),
        ("main(epochs=5)", False),
        ("main(logger=False)", True),
        ("main(**settings)", True),
        ("", True),
    ],
)
def test_it_is_marked_where_something_may_be_in_it(call, marked, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(call=call))
    assert (MARK in analyse(path).rewritten.decode()) is marked


@pytest.mark.parametrize(
    ("given", "marked"),
    [
        ('{"max_epochs": 5} | options', False),
        ('options | {"max_epochs": 5}', False),
        ('{"logger": False} | options', True),
        ("{**options}", True),
        ("others | options", True),
    ],
)
def test_what_is_written_there_is_read(given, marked, tmp_path):
    path = tmp_path / "train.py"
    source = PROGRAM.replace("{call}", "main()")
    path.write_text(source.replace("max_epochs=epochs, **options", f"**({given})"))
    assert (MARK in analyse(path).rewritten.decode()) is marked
