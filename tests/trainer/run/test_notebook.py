"""A run as a notebook shows it."""

import pytest
from helpers.run_folders import rows_of, write_run

from paceline import PacelineError, Run


def test_a_run_shows_its_facts_values_and_curves(tmp_path):
    rows = rows_of([3.0, 1.0, 2.0], **{"val/<b>": "nan", "lr/SGD": 0.5})
    shown = Run(write_run(tmp_path / "net" / "1", rows))._repr_html_()
    assert "net/1" in shown
    assert "30 steps in 6 s, 2 cpu, ddp, bf16, started 2026-01-02 03:04" in shown
    assert "<td>train/loss</td><td>2</td><td>1</td><td>20</td>" in shown
    assert "<td>lr/SGD</td><td>0.5</td><td></td><td></td>" in shown
    assert shown.count("<svg") == 3
    assert "no finite value" in shown
    assert "<b>" not in shown.replace("<b>net/1</b>", "")
    assert "<script" not in shown


def test_a_curve_is_where_its_values_are(tmp_path):
    shown = Run(write_run(tmp_path / "net" / "1", rows_of([0.0, 1.0])))._repr_html_()
    # From 0 to 1 over the whole width; the room above is 7 %, below 5 %.
    assert 'd="M50.0 170.5L450.0 20.5"' in shown


def test_runs_without_values_show_that(tmp_path):
    assert "nothing was logged" in Run(write_run(tmp_path / "net" / "1"))._repr_html_()
    assert "wrote nothing" in Run(None)._repr_html_()


def test_a_damaged_environment_is_named(tmp_path):
    folder = write_run(tmp_path / "net" / "1")
    assert Run(folder).environment["host"] == "box"
    (folder / "env.json").write_text('{"host": ')
    with pytest.raises(PacelineError, match=r"env\.json is damaged"):
        Run(folder).environment  # noqa: B018
    (folder / "env.json").unlink()
    assert Run(folder).environment == {}
