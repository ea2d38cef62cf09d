"""What the comparison of programs looks at: imports alone are replaced, and a difference is found."""

import copy

import pytest
import torch
from helpers import lightning_records as records
from helpers.jobs import load_job

recorder = load_job(records.FOLDER / "recorder.py")

IMPORTS = """
import lightning as L
import lightning.pytorch as pl
import pytorch_lightning as old
from lightning.pytorch.callbacks import EarlyStopping
    from pytorch_lightning.loggers import CSVLogger
import lightning_utilities
from lightning_fabric import Fabric
note = "from lightning import Trainer"
"""
REPLACED = """
import new.place as L
import new.place.pytorch as pl
import new.place.pytorch as old
from new.place.pytorch.callbacks import EarlyStopping
    from new.place.pytorch.loggers import CSVLogger
import lightning_utilities
from lightning_fabric import Fabric
note = "from lightning import Trainer"
"""
FOUND = {
    "draws": None,
    "calls": [["M", "training_step", [["tensor[2] 1.5"], 0]], ["M", "on_train_end", []]],
    "logged": [["loss", (0.1).hex()], ["loss", (0.4).hex()], ["acc", "metric"]],
    "metrics_during": [["fit", {"loss_step": (0.4).hex(), "loss_epoch": (0.25).hex(), "acc": (0.5).hex()}]],
    "metrics": {},
}


def changed(**metrics):
    other = copy.deepcopy(FOUND)
    other["metrics_during"][0][1] |= {name: value.hex() for name, value in metrics.items()}
    return other


def test_only_imports_of_lightning_are_replaced():
    assert recorder.with_package(IMPORTS, "new.place") == (REPLACED, 5)


def test_equal_records_have_no_difference():
    assert records.different_metrics(FOUND, FOUND) == []
    assert records.different_logged(FOUND, FOUND) == []
    assert records.different_calls(FOUND, FOUND) == []


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        ({"loss_epoch": 0.2500001}, 0),  # a mean
        ({"loss_epoch": 0.250001}, 1),
        ({"loss_step": 0.40000001}, 0),  # the same number in single precision
        ({"loss_step": 0.40000003}, 1),
        ({"acc": float("nan")}, 1),
        ({"other": 1.0}, 1),
    ],
)
def test_metrics_that_differ_are_found(metrics, count):
    assert len(records.different_metrics(FOUND, changed(**metrics))) == count


def test_calls_that_differ_are_found_unless_they_are_ignored():
    other = copy.deepcopy(FOUND)
    other["calls"][0][2][0] = ["tensor[2] 1.25"]
    assert "+M.training_step([tensor[2] 1.25], 0)" in records.different_calls(FOUND, other)
    assert records.different_calls(FOUND, other, {"training_step"}) == []
    noisy = FOUND | {"draws": "noise"}
    assert records.different_calls(noisy, other) == []
    other["calls"].pop()
    assert records.different_calls(noisy, other)


def test_a_digest_changes_with_each_part_of_a_state():
    state = {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros((), dtype=torch.bfloat16)}
    digest = recorder.digest(state)
    assert digest == recorder.digest(dict(reversed(state.items())))
    others = [
        {"a": torch.tensor([1.0, 2.0000002])},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"b": torch.zeros(())},
        {"c": torch.zeros(())},
    ]
    assert all(recorder.digest(state | other) != digest for other in others)
