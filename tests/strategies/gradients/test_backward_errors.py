"""DeepSpeed's refusals name the parameter also where DeepSpeed has lost its name."""

from __future__ import annotations

import pytest
import torch

from paceline import PacelineError
from paceline.strategies.gradients.backward_errors import of_deepspeed


def one(param):
    raise AssertionError("The parameter unknown has already been reduced. Gradient computed twice")


def reduce_bucket(params_in_bucket):
    param = params_in_bucket[-1]
    raise AssertionError(f"{len(params_in_bucket)} of {param.shape}")


@pytest.mark.parametrize(
    ("refuse", "names"),
    [(lambda b, w: one(w), "weight"), (lambda b, w: reduce_bucket([b, w, b]), "bias")],
    ids=["one", "in a bucket"],
)
def test_a_refused_parameter_has_its_name_after_an_earlier_engine_was_collected(refuse, names):
    module = torch.nn.Linear(2, 2)
    named = {p: name for name, p in module.named_parameters()}
    with (
        pytest.raises(PacelineError, match=f"got: {names}\n.*use_reentrant=False"),
        of_deepspeed("deepspeed_stage_2", lambda: named),
    ):
        refuse(module.bias, module.weight)


def test_other_failed_assertions_stay_as_they_are():
    with pytest.raises(AssertionError, match="another"), of_deepspeed("deepspeed_stage_2", dict):
        raise AssertionError("another")
