"""Notes of ranks in the folder of their job."""

import time

from paceline import PacelineError
from paceline.strategies.launch import job_notes


def test_a_rank_that_fails_again_while_it_ends_has_failed_at_the_first_time(tmp_path, monkeypatch):
    monkeypatch.setenv(job_notes.JOB, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    assert job_notes.note_failure(ArithmeticError("too much"))
    between = time.time_ns()
    assert job_notes.note_failure(PacelineError("a mistake"), "shown")
    (rank, noted), *others = job_notes.failures(tmp_path).items()
    assert (rank, others) == (3, [])
    assert noted.time <= between
    assert (noted.mistake, noted.message) == (True, "shown")
    assert "a mistake" in noted.what


def test_without_a_launcher_nothing_is_noted(monkeypatch):
    monkeypatch.delenv(job_notes.JOB, raising=False)
    assert not job_notes.note_failure(ArithmeticError("too much"))
