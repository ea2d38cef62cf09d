"""What is said where a sharded parameter is saved as if it were whole: in a run, and after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import processes
from helpers.ranks import run_ranks

JOB = Path(__file__).with_name("saving_job.py")


def said_in_a_hook(folder: Path) -> list[str]:
    """By each of two ranks."""
    done = run_ranks(JOB, 2, json.dumps({"place": "in a hook"}), folder=folder, check=False)
    assert not {0, None} & set(done.codes), done.output
    return [errors for _, errors in done.printed]


def said_after_the_fit(folder: Path) -> list[str]:
    """By what started the ranks: those of another launcher do not know of an error after the fit."""
    done = processes.run(JOB, folder, {"place": "after the fit"})
    assert done.code not in (0, None), done.printed()
    return [done.printed()]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(said_in_a_hook, id="in a hook", marks=pytest.mark.ranks),
        pytest.param(said_after_the_fit, id="after the fit", marks=pytest.mark.launch),
    ],
)
def test_the_error_says_what_to_call(said, tmp_path):
    for printed in said(tmp_path):
        assert "data pointer on an invalid python storage" in printed
        assert 'fix: trainer.export(folder, "model") on all ranks' in printed
        assert "load_from_checkpoint" in printed
