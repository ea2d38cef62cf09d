"""Which parts of a model are its repeated blocks, and computing them again in backward on one device."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.trainers import quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, TrainModule
from paceline.callbacks import Callback
from paceline.strategies import Single
from paceline.strategies.blocks.activations import Activations
from paceline.strategies.blocks.repeated_blocks import find_units


class Block(nn.Module):
    def __init__(self, width: int = 8, dropout: float = 0.0):
        super().__init__()
        self.line, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.dropout(torch.tanh(self.line(x)))


class Other(Block):
    pass


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(Block(), Block())


def holder(**parts: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


def names(module: nn.Module) -> list[str]:
    by_id = {id(part): name for name, part in module.named_modules()}
    return [by_id[id(unit)] for unit in find_units(module)]


@pytest.mark.parametrize(
    ("module", "units"),
    [
        (holder(a=nn.ModuleList([Block(), Block(), Block()])), ["a.0", "a.1", "a.2"]),
        (holder(a=nn.Sequential(nn.Linear(8, 8), Block(), nn.ReLU(), Block())), ["a.1", "a.3"]),
        (holder(a=nn.ModuleList([Block(), Other(), Block()])), ["a.0", "a.2"]),
        (holder(a=nn.ModuleList([Block(), Other()])), []),
        (holder(a=nn.ModuleList([Block()])), []),
        (holder(a=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))), []),
        (holder(a=nn.ModuleList([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())])), []),
        (holder(a=nn.ModuleList([Outer(), Outer()])), ["a.0", "a.1"]),
        (holder(a=nn.ModuleList([Outer()])), ["a.0.parts.0", "a.0.parts.1"]),
        (
            holder(a=nn.ModuleList([Block(), Block()]), b=nn.ModuleList([Other(), Other()])),
            ["a.0", "a.1", "b.0", "b.1"],
        ),
        (nn.Sequential(Block(), Block()), ["0", "1"]),
        (nn.Linear(2, 2), []),
    ],
)
def test_repeated_blocks_are_found_and_outer_ones_win(module, units):
    assert names(module) == units


def test_the_blocks_of_torch_s_own_transformer_are_found():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False)
    assert names(encoder) == ["layers.0", "layers.1", "layers.2"]


class Model(TrainModule):
    def __init__(self, dropout: float = 0.0, blocks: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block(8, dropout) for _ in range(blocks))

    def training_step(self, batch):
        x, y = batch
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return F.cross_entropy(self.last(hidden), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def choosing(module: nn.Module, give) -> nn.Module:
    module.shard_units = lambda: give(module)
    return module


def test_shard_units_is_asked_first():
    assert names(choosing(Model(), lambda m: [m.last, "blocks.1"])) in (
        ["last", "blocks.1"],
        ["blocks.1", "last"],
    )
    assert names(choosing(Model(), lambda m: m.blocks)) in (
        ["blocks.0", "blocks.1", "blocks.2"],
        ["blocks.2", "blocks.1", "blocks.0"],
    )
    assert names(choosing(Model(), lambda m: (b for b in m.blocks[:1]))) == ["blocks.0"]
    assert names(choosing(Model(), lambda m: [])) == []


@pytest.mark.parametrize(
    "wrong", [lambda m: ["blocks.7"], lambda m: [nn.Linear(2, 2)], lambda m: [3], lambda m: None]
)
def test_what_is_no_submodule_is_refused_with_what_is_allowed(wrong):
    with pytest.raises(PacelineError, match="no submodule") as refused:
        find_units(choosing(Model(), wrong))
    assert "submodules, or their dotted names" in str(refused.value)


def test_a_unit_given_twice_counts_once():
    assert names(choosing(Model(), lambda m: ["blocks.0", m.blocks[0]])) == ["blocks.0"]


# -- computing again ---------------------------------------------------------------------------


def train(module: Model, callbacks=(), steps: int = 4, **strategy) -> Model:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 4, generator=generator)
    trainer = quiet(strategy=Single(**strategy), devices=1, max_steps=steps, callbacks=callbacks)
    trainer.fit(module, DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 8))
    return module


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputation_changes_no_bit_and_runs_each_block_twice(dropout):
    usual, again = train(Model(dropout)), train(Model(dropout), activation_checkpointing=True)
    assert [b.calls for b in usual.blocks] == [4, 4, 4]
    assert [b.calls for b in again.blocks] == [8, 8, 8]
    for name, value in usual.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_a_block_used_in_several_places_is_computed_again_once_for_each():
    module = Model()
    module.blocks = nn.ModuleList([Block()] * 3)
    train(module, activation_checkpointing=True, steps=1)
    assert module.blocks[0].calls == 6


def test_after_a_run_each_block_has_its_own_forward():
    module = train(Model(), activation_checkpointing=True)
    assert ["forward" in vars(part) for part in module.modules()] == [False] * len(list(module.modules()))
    before = [b.calls for b in module.blocks]
    module.training_step((torch.ones(2, 4), torch.zeros(2, dtype=torch.long))).backward()
    assert [b.calls for b in module.blocks] == [n + 1 for n in before]


def test_a_run_that_fails_gives_the_forward_back_too():
    class Fails(Callback):
        def on_step_end(self, trainer):
            raise RuntimeError("enough")

    module = Model()
    with pytest.raises(RuntimeError, match="enough"):
        train(module, Fails(), activation_checkpointing=True)
    assert not any("forward" in vars(part) for part in module.modules())


def test_a_copy_made_in_a_run_computes_with_its_own_blocks():
    copies = []

    class Copies(Callback):
        def on_step_end(self, trainer):
            copies.append(copy.deepcopy(trainer.module))

    module = train(Model(), Copies(), steps=1, activation_checkpointing=True)
    before = module.blocks[0].calls
    with torch.no_grad():
        for parameter in copies[0].blocks.parameters():
            parameter.zero_()
        hidden = copies[0].blocks[0](torch.ones(1, 8))
    assert torch.equal(hidden, torch.ones(1, 8))
    assert module.blocks[0].calls == before


def test_a_model_without_repeated_blocks_is_an_error_that_shows_shard_units():
    with pytest.raises(PacelineError, match="no repeated blocks") as refused:
        train(Model(blocks=1), activation_checkpointing=True)
    assert "def shard_units(self): return self.blocks" in str(refused.value)


def test_nothing_is_computed_again_without_gradients():
    module = Model()
    recomputation = Activations(module, True)
    with torch.no_grad():
        module.training_step((torch.ones(2, 4), torch.zeros(2, dtype=torch.long)))
    recomputation.undo()
    assert [b.calls for b in module.blocks] == [1, 1, 1]
