"""MuonWithAdamW on one device: which parameters go where, and that it is torch's Muon and torch's AdamW."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from paceline import PacelineError, TrainModule
from paceline.optimizers import MuonWithAdamW, muon, muon_matrices, newton_schulz, orthogonalise


class Language(nn.Module):
    def __init__(self, tied: bool = False):
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.zeros(4, 8))
        self.conv = nn.Conv1d(8, 8, 3)
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm = nn.LayerNorm(8)
        self.wide, self.tall = nn.Linear(8, 16), nn.Linear(16, 8)
        self.lm_head = nn.Linear(8, 11, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight


HIDDEN = ["attention.in_proj_weight", "attention.out_proj.weight", "wide.weight", "tall.weight"]


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices_are_muons_and_all_else_adamws(tied):
    module = Language(tied)
    optimizer = MuonWithAdamW(module)
    assert optimizer.split()["muon"] == HIDDEN
    assert optimizer.split()["adamw"] == [n for n, _ in module.named_parameters() if n not in HIDDEN]
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in module.parameters())


def test_a_linear_layer_tied_to_an_embedding_is_adamws_wherever_it_is_registered():
    module = Language()
    module.wide.weight = module.wte.weight
    assert "wide.weight" not in muon_matrices(module)
    assert "wte.weight" not in muon_matrices(module)


@pytest.mark.parametrize(
    ("patterns", "more", "less"),
    [
        ({"adamw": ["wide"]}, [], ["wide.weight"]),
        ({"adamw": ["attention.*"]}, [], HIDDEN[:2]),
        ({"adamw": ["*.weight"]}, [], HIDDEN[1:]),
        ({"muon": ["positions"]}, ["positions"], []),
        ({"muon": ["lm_head"], "adamw": ["tall.weight"]}, ["lm_head.weight"], ["tall.weight"]),
    ],
)
def test_patterns_say_otherwise(patterns, more, less):
    assert sorted(muon_matrices(Language(), **patterns)) == sorted({*HIDDEN, *more} - {*less})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"adamw": ["lm_hed"]}, ["adamw='lm_hed'", "did you mean: lm_head"]),
        ({"adamw": "wte"}, ["one string", "adamw=['wte']"]),
        ({"muon": ["norm"]}, ["norm.weight", "1 dimensions"]),
        ({"muon": ["wide.weight"], "adamw": ["wide"]}, ["wide.weight", "muon= and adamw="]),
        ({"adamw": ["wide", "tall", "attention"]}, ["no hidden matrix", "torch.optim.AdamW"]),
        ({"lr": -1, "adjust_lr": "origin"}, ["lr: got -1", "did you mean 'original'"]),
        ({"orthogonalisation_dtype": torch.float16}, ["torch.float16", "torch.bfloat16"]),
        ({"momentum": 1.0}, ["momentum"]),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(PacelineError) as error:
        MuonWithAdamW(Language(), **arguments)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert len(str(error.value).splitlines()) <= 12


def test_it_takes_the_module_and_not_its_parameters():
    with pytest.raises(PacelineError, match=r"not self.parameters\(\)"):
        MuonWithAdamW(Language().parameters())


def test_train_module_of_gives_it_the_module():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5))
    module = TrainModule.of(model, nn.functional.cross_entropy, partial(MuonWithAdamW, lr=0.01))
    assert module.configure_optimizers().split()["muon"] == ["model.1.weight"]


def set_gradients(generator, *modules):
    for parameters in zip(*(module.parameters() for module in modules), strict=True):
        gradient = torch.randn(parameters[0].shape, generator=generator)
        for parameter in parameters:
            parameter.grad = gradient.to(parameter.dtype)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_in_bfloat16_it_is_torchs_muon_and_beside_it_torchs_adamw(adjust_lr, nesterov):
    ours, theirs = Language(), Language()
    theirs.load_state_dict(ours.state_dict())
    settings = {"weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}
    optimizer = MuonWithAdamW(
        ours,
        lr=0.01,
        muon_lr=0.02,
        betas=(0.8, 0.95),
        adjust_lr=adjust_lr,
        orthogonalisation_dtype=torch.bfloat16,
        **settings,
    )
    named = dict(theirs.named_parameters())
    others = [named[name] for name in optimizer.split()["adamw"]]
    biases = [p for n, p in named.items() if p.ndim < 2 or n.endswith(".bias")]
    muon = torch.optim.Muon([named[n] for n in HIDDEN], lr=0.02, adjust_lr_fn=adjust_lr, **settings)
    groups = [
        {"params": [p for p in others if not any(p is b for b in biases)], "weight_decay": 0.1},
        {"params": biases, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))
    generator = torch.Generator().manual_seed(2)
    for _ in range(6):
        set_gradients(generator, ours, theirs)
        for one in (optimizer, muon, adamw):
            one.step()
    for name, value in ours.named_parameters():
        is_exact = name not in HIDDEN or (adjust_lr == "original" and value.size(0) <= value.size(1))
        # Else the adjustment multiplies the update where torch multiplies the rate: float32's rounding.
        torch.testing.assert_close(value, named[name], rtol=0, atol=0 if is_exact else 1e-7, msg=name)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_orthogonalised_matrix_has_the_same_directions_and_singular_values_near_one(shape, dtype):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = orthogonalise(matrix, dtype)
    assert found.shape == matrix.shape
    assert found.dtype == (torch.float64 if dtype == torch.float32 else dtype)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ found.double() @ right.T
    assert turned.diagonal().min() > 0.6
    assert turned.diagonal().max() < 1.3
    rest = turned - turned.diagonal().diag()
    assert rest.abs().max() < (0.05 if dtype == torch.bfloat16 else 1e-12)


def test_a_matrix_of_zeros_stays_one():
    assert not orthogonalise(torch.zeros(3, 4)).any()


def test_frozen_parameters_and_those_without_a_gradient_do_not_change():
    module = Language()
    module.wide.weight.requires_grad_(False)
    optimizer = MuonWithAdamW(module)
    set_gradients(torch.Generator().manual_seed(1), module)
    module.wide.weight.grad = module.norm.weight.grad = None
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer.step()
    after = module.state_dict()
    same = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert same == ["norm.weight", "wide.weight"]


def test_state_copies_and_a_closure():
    module = Language()
    optimizer = MuonWithAdamW(module)
    set_gradients(torch.Generator().manual_seed(1), module)
    assert optimizer.step(lambda: torch.is_grad_enabled()) is True
    other = copy.deepcopy(module)
    again = MuonWithAdamW(other)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    set_gradients(torch.Generator().manual_seed(2), module, other)
    copied = pickle.loads(pickle.dumps(optimizer))
    assert copied.split() == optimizer.split()
    optimizer.step()
    again.step()
    copied.step()
    for name, value in module.named_parameters():
        assert torch.equal(value, dict(other.named_parameters())[name]), name
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    theirs = [p for group in copied.param_groups for p in group["params"]]
    # A pickle has its own parameters, without gradients.
    assert all(p.grad is None for p in theirs)
    assert len(mine) == len(theirs)


def test_schedules_set_the_rates_of_both_sides():
    optimizer = MuonWithAdamW(Language(), lr=0.1, muon_lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.1, 0.05, 0.05]


SHAPES = [(6, 6), (4, 9), (9, 4), (1, 7), (4, 9), (6, 6)]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.bfloat16, 0.02)])
def test_matrices_of_one_shape_or_its_transpose_are_orthogonalised_at_once(dtype, atol, monkeypatch):
    """In float32 the iteration amplifies what a library rounds otherwise in a product of a stack."""
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    alone = [orthogonalise(matrix, dtype) for matrix in matrices]
    stacks = []

    def recorded(matrix, *arguments):
        stacks.append(tuple(matrix.shape))
        return orthogonalise(matrix, *arguments)

    monkeypatch.setattr(newton_schulz, "orthogonalise", recorded)
    found = newton_schulz.orthogonalise_all(matrices, dtype)
    assert sorted(stacks) == [(1, 7), (2, 6, 6), (3, 4, 9)]
    for one, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(one, expected, rtol=0, atol=atol)


def test_a_step_does_not_depend_on_how_many_are_computed_at_once(monkeypatch):
    once, one_by_one = Language(), Language()
    one_by_one.load_state_dict(once.state_dict())
    generator = torch.Generator().manual_seed(2)
    optimizers = MuonWithAdamW(once), MuonWithAdamW(one_by_one)
    for _ in range(3):
        set_gradients(generator, once, one_by_one)
        optimizers[0].step()
        with monkeypatch.context() as patch:
            patch.setattr(muon, "_NUMBERS_AT_ONCE_ON_CPU", 0)
            optimizers[1].step()
    for name, value in once.named_parameters():
        torch.testing.assert_close(value, one_by_one.get_parameter(name), rtol=0, atol=1e-6, msg=name)
