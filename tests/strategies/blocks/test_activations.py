"""Selective activation checkpointing and activation offload: which parts, and what is computed again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers.trainers import quiet
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.strategies import FSDP, Single
from paceline.strategies.blocks import activations
from paceline.strategies.blocks.activations import Activations


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(F.gelu(mixed))


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def training_step(self, batch):
        x = self.first(batch[0])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.last(x.mean(1)), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(4, 5, 8, generator=draw), torch.arange(4) % 3


def calls_in_backward(**settings) -> Counter:
    module = Model()
    changed = Activations(module, settings.pop("checkpointing", False), **settings)
    loss = module.training_step(batch())
    with Count() as count:
        loss.backward()
    changed.undo()
    return count.calls


def test_selective_checkpointing_computes_no_product_and_no_attention_again():
    usual, full = calls_in_backward(), calls_in_backward(checkpointing=True)
    selective = calls_in_backward(checkpointing="selective")
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert [c["addmm"] for c in (usual, full, selective)] == [0, 3, 0]  # nothing needs the last one again
    assert [c[attention] for c in (usual, full, selective)] == [0, 3, 0]
    assert [c["gelu"] for c in (usual, full, selective)] == [0, 3, 3]
    assert [c["native_layer_norm"] for c in (usual, full, selective)] == [0, 3, 3]
    assert usual["mm"] == full["mm"] == selective["mm"] > 0  # those of backward itself


def test_every_operation_of_the_rule_exists_or_is_of_another_torch():
    found = {op.name() for op in activations._kept_operations()}
    for name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::max", "aten::topk"):
        assert any(one.partition(".")[0] == name for one in found), name
    assert any(one.startswith("aten::_scaled_dot_product_flash_attention") for one in found)
    assert any(one.startswith("_c10d_functional::reduce_scatter_tensor") for one in found)


def train(strategy) -> Model:
    module = Model()
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(32, 5, 8, generator=draw), torch.arange(32) % 3)
    quiet(strategy=strategy, devices=1, max_steps=4, run_dir=None).fit(module, DataLoader(data, 8))
    return module


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_checkpointing": "selective"},
        {"activation_offload": True},
        {"activation_offload": ["blocks.1", "first"], "activation_checkpointing": True},
        {"activation_offload": "blocks.*", "activation_checkpointing": "selective"},
    ],
    ids=str,
)
def test_no_bit_changes_and_the_module_gets_its_forward_back(settings):
    usual, other = train(Single()), train(Single(**settings))
    for name, value in usual.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert not any("forward" in vars(part) for part in other.modules())


def saved_in(offload) -> list[str]:
    """The parts in which something was offered to the host, in order."""
    module, seen = Model(), []
    names = {part: name for name, part in module.named_modules()}

    def offered(forward, part, *args, **kwargs):
        seen.append(names[part])
        return forward(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "_offloaded", offered)
        changed = Activations(module, False, offload)
        module.training_step(batch()).backward()
        changed.undo()
    return seen


def test_parts_are_chosen_by_name_or_pattern():
    assert saved_in(True) == ["blocks.0", "blocks.1", "blocks.2"]
    assert saved_in("blocks.[02]") == ["blocks.0", "blocks.2"]
    assert saved_in(["last", "blocks.1.norm"]) == ["blocks.1.norm", "last"]


def test_a_name_that_is_none_is_an_error_with_the_nearest():
    with pytest.raises(PacelineError, match=r"has no submodule 'block\.1'") as caught:
        train(Single(activation_offload=["block.1"]))
    assert "did you mean: blocks.1?" in str(caught.value)


@pytest.mark.parametrize("kind", [Single, FSDP])
def test_wrong_arguments_are_reported_together(kind):
    with pytest.raises(PacelineError) as caught:
        kind(activation_checkpointing="some", activation_offload=3)
    assert "activation_checkpointing: got 'some'; allowed: False, True, 'selective'" in str(caught.value)
    assert "activation_offload: got 3" in str(caught.value)


def test_what_lies_on_the_host_already_is_not_copied():
    tensor = torch.ones(64, 64)
    assert activations._to_host(set(), tensor) is tensor
    assert activations._from_host(tensor) is tensor
