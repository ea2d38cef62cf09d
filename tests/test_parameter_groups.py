"""Parameter groups: which parameters are in which, with which settings."""

import pytest
import torch
from torch import nn

from paceline import PacelineError
from paceline.parameter_groups import decay_groups, layer_groups


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 5, bias=False)
        self.tied = self.embed


def named(module, groups):
    names = {id(p): name for name, p in module.named_parameters()}
    return [sorted(names[id(p)] for p in group["params"]) for group in groups]


def test_biases_norms_and_what_is_named_have_no_weight_decay():
    module = Model()
    groups = decay_groups(module, 0.1, no_decay=["embed.*"], lr=0.01, betas=(0.8, 0.9))
    kept = [*(f"blocks.{n}.weight" for n in range(3)), "head.weight"]
    without = [*(f"blocks.{n}.bias" for n in range(3)), "embed.weight", "norm.bias", "norm.weight"]
    assert named(module, groups) == [kept, without]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    optimizer = torch.optim.AdamW(groups)
    assert all(group["lr"] == 0.01 and group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)


def test_a_group_without_parameters_is_left_out():
    module = nn.Linear(2, 2, bias=False)
    assert len(decay_groups(module, 0.1)) == 1


def test_each_layer_has_a_smaller_rate_than_the_next():
    module = Model()
    groups = layer_groups(module, 1.0, 0.5, layers="blocks", weight_decay=0.1)
    rates = {}
    for names, group in zip(named(module, groups), groups, strict=True):
        for name in names:
            rates[name] = (group["lr"], group["weight_decay"])
    assert rates == {
        "embed.weight": (0.5**4, 0.1),
        "norm.weight": (0.5**4, 0.0),
        "norm.bias": (0.5**4, 0.0),
        **{f"blocks.{n}.weight": (0.5 ** (3 - n), 0.1) for n in range(3)},
        **{f"blocks.{n}.bias": (0.5 ** (3 - n), 0.0) for n in range(3)},
        "head.weight": (1.0, 0.1),
    }


def test_ten_layers_are_counted_by_their_place():
    module = nn.Sequential(nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(11)))
    groups = layer_groups(module, 1.0, 0.5, layers="0")
    assert [group["lr"] for group in groups] == [0.5 ** (11 - n) for n in range(11)]


def test_mistakes_name_what_is_meant():
    with pytest.raises(PacelineError, match="did you mean: blocks"):
        layer_groups(Model(), 1.0, 0.5, layers="block")
    with pytest.raises(PacelineError) as error:
        layer_groups(Model(), -1.0, 2.0, layers="")
    assert all(name in str(error.value) for name in ("lr", "decay", "layers"))
    with pytest.raises(PacelineError, match="weight_decay"):
        decay_groups(Model(), "0.1")


@pytest.mark.parametrize("given", ["embed.*", ("embed.*",), (name for name in ["embed.*"])])
def test_one_pattern_and_any_iterable_of_them_are_taken(given):
    groups = decay_groups(Model(), 0.1, no_decay=given)
    assert len(groups[0]["params"]) == 4  # of 3 blocks and the head


@pytest.mark.parametrize("given", [None, 3, [], [""]])
def test_patterns_that_are_none_are_refused(given):
    with pytest.raises(PacelineError, match="no_decay: got"):
        decay_groups(Model(), 0.1, no_decay=given)


@pytest.mark.parametrize("given", [Model().parameters(), list(Model().parameters()), Model])
def test_parameters_in_the_place_of_the_module_are_refused(given):
    for make in (lambda: decay_groups(given, 0.1), lambda: layer_groups(given, 0.1, 0.5, layers="blocks")):
        with pytest.raises(PacelineError, match=r"takes a module, whose parameters have names"):
            make()
