"""The tokens so far, the sum of returned weights: in every row, exact on any ranks and after a resume."""

import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_ranks

from paceline import PacelineError, Run

JOB = Path(__file__).with_name("tokens_job.py")
job = load_job(JOB)


def tokens_at(step):
    """The sum of 1.0, 2.0 ... 24.0, four in a step, six steps in an epoch."""
    epochs, steps = divmod(step, 6)
    return epochs * sum(range(1, 25)) + sum(range(1, 4 * steps + 1))


def rows(folder):
    return Run(folder / "r" / "1").rows


def test_every_row_has_the_tokens_up_to_its_step(tmp_path):
    trainer, data = job.train(tmp_path)
    trainer.fit(job.Module(), data, data)
    found = rows(tmp_path)
    assert {row["step"] for row in found} >= {1, 2, 3, 4, 5, 6, 9, 12}  # 3, 5 and 9 are between log points
    assert [row["tokens"] for row in found] == [tokens_at(row["step"]) for row in found]
    assert not [name for row in found for name in row if "tokens_since" in name]
    assert "tokens_since" not in json.dumps(trainer.metrics)


def test_two_ranks_and_a_resume_count_the_same(tmp_path):
    run_ranks(JOB, 2, tmp_path, folder=tmp_path)
    found = rows(tmp_path)
    assert [row["tokens"] for row in found] == [tokens_at(row["step"]) for row in found]
    assert {row["step"] for row in found} >= {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12}


def test_without_weights_there_are_none(tmp_path):
    class Plain(job.Module):
        def training_step(self, batch):
            return super().training_step(batch)["loss"]

    trainer, data = job.train(tmp_path)
    trainer.fit(Plain(), data, data)
    assert not any("tokens" in row for row in rows(tmp_path))


def test_a_weight_of_none_is_no_weight_and_a_wrong_one_is_named(tmp_path):
    class Unweighted(job.Module):
        def training_step(self, batch):
            return super().training_step(batch) | {"weight": None}

    class Wrong(job.Module):
        def training_step(self, batch):
            return super().training_step(batch) | {"weight": "four"}

    trainer, data = job.train(tmp_path)
    trainer.fit(Unweighted(), data, data)
    assert not any("tokens" in row for row in rows(tmp_path))
    trainer, data = job.train(tmp_path)
    with pytest.raises(PacelineError, match="the weight that training_step returned must be a scalar"):
        trainer.fit(Wrong(), data, data)
