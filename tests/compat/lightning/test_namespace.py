"""The names that torch's modules keep their parts under, which one file uses."""

import torch
from torch import nn

from paceline.compat.lightning.translation.namespace import PARTS, share


def test_torch_keeps_the_parts_of_a_module_under_these_names():
    module = nn.Linear(2, 1)
    for name in PARTS:
        assert name in vars(module), name


def test_what_is_assigned_later_belongs_to_both():
    source, target = nn.Linear(2, 1), nn.Module()
    share(source, target)
    source.scale = nn.Parameter(torch.ones(1))
    source.register_buffer("mean", torch.zeros(1), persistent=False)
    target.part = nn.Linear(1, 1)
    names = ["weight", "bias", "scale", "part.weight", "part.bias"]
    assert [n for n, _ in target.named_parameters()] == [n for n, _ in source.named_parameters()] == names
    assert target.mean is source.mean
    assert [*target.state_dict()] == names
