"""Programs written for Lightning on two ranks: stopped at an epoch and continued, they end the same."""

import json

import pytest
from helpers import lightning_records as records
from helpers.ranks import run_ranks

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not records.is_installed(records.OURS), reason=f"needs {records.OURS}"),
]
# Without those whose schedule depends on max_epochs, that keep no checkpoint, that count what a fit did.
PROGRAMS = (
    "autoencoder",
    "custom_callbacks",
    "detection",
    "ema",
    "frozen_backbone",
    "gan",
    "hydra_template",
    "lstm",
    "manual_dicts",
    "model_output",
    "multi_task",
    "pictures",
    "ppo",
    "regression_forks",
)
ALWAYS = "hydra_template"  # the others under --soak: each starts three runs
WITH_LIGHTNING = pytest.mark.skipif(
    not records.is_installed(records.THEIRS), reason="long; runs beside Lightning"
)
RANKS = {"devices": 2, "accelerator": "cpu"}
# A backward pass of one of two optimizers leaves the other's parameters without gradients.
UNUSED = "ddp_find_unused_parameters_true"
STRATEGIES = {"gan": UNUSED, "manual_dicts": UNUSED}
NOT_SAVED = {"ppo": "avg_ep_reward"}
"""Values that a module keeps in an attribute of its own, which no checkpoint has."""


def run(folder, name, resume=None, **options):
    """Run a program on two ranks in this folder; what it did, on the first rank."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    options = RANKS | {"strategy": STRATEGIES.get(name, "ddp")} | options
    given = [f"--option={key}={json.dumps(value)}" for key, value in options.items()]
    given += [f"--resume={resume}"] * (resume is not None)
    program = records.FOLDER / "programs" / f"{name}.py"
    recorder = records.FOLDER / "recorder.py"
    run_ranks(recorder, 2, records.OURS, out, program, "--folder", folder, *given, folder=folder)
    found = json.loads(out.read_text())[name]
    assert "error" not in found, found["error"]
    found["metrics"].pop(NOT_SAVED.get(name), None)
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=WITH_LIGHTNING if n == ALWAYS else pytest.mark.soak) for n in PROGRAMS],
)
def test_a_continued_run_ends_with_the_same_weights(tmp_path, name):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    expected = run(whole, name, max_epochs=2)
    first = run(parts, name, max_epochs=1)
    second = run(parts, name, resume="last", max_epochs=2)
    assert first["state"] != expected["state"]
    assert first["global_step"] * 2 == expected["global_step"]
    assert second["global_step"] == expected["global_step"]
    assert second["state"] == expected["state"]
    assert (
        records.different_metrics(expected, second | {"metrics_during": expected["metrics_during"]}) == []
    )
