"""LowPrecisionState on one device: bytes, rounding, the loss, and that nothing else changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from helpers.pairwise import soaked
from torch import nn
from torch.nn import functional as F

from paceline import PacelineError
from paceline.optimizers import LowPrecisionState, MuonWithAdamW


class Transformer(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, width), nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 17)

    def forward(self, tokens):
        hidden = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def train(make_optimizer, steps: int = 50) -> list[float]:
    """Losses of a small language model: each token is the one before it times 3, plus 1."""
    torch.manual_seed(1)
    model = Transformer()
    optimizer, losses = make_optimizer(model), []
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        rows = [torch.randint(17, (16, 1), generator=generator)]
        for _ in range(12):
            rows.append((rows[-1] * 3 + 1) % 17)
        tokens = torch.cat(rows, 1)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=3e-3)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


MAKERS = {
    "adamw": adamw,
    "adamw-fused": lambda module: torch.optim.AdamW(module.parameters(), lr=3e-3, fused=True),
    "amsgrad": lambda module: torch.optim.Adam(module.parameters(), lr=3e-3, amsgrad=True),
    "sgd": sgd,
    "muon": lambda module: MuonWithAdamW(module, lr=3e-3),
}


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("name", soaked(list(MAKERS), ["adamw", "sgd", "muon"]))
def test_after_50_steps_the_loss_is_within_a_thousandth_of_float32s(name):
    """Of what the run has come down."""
    exact = train(MAKERS[name])
    found = train(lambda module: LowPrecisionState(MAKERS[name](module)))
    came_down = exact[0] - exact[-1]
    assert came_down > 0.5
    assert found != exact
    assert abs(found[-1] - exact[-1]) < 1e-3 * came_down


def moments(optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{key}": value
        for number, state in enumerate(optimizer.state.values())
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.ndim
    }


def stepped(module, optimizer, generator=None):
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    optimizer.step()


class Bytes(torch.utils._python_dispatch.TorchDispatchMode):
    """The most bytes of live tensors that were made inside."""

    def __init__(self):
        super().__init__()
        self.live, self.most = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        import weakref

        found = function(*args, **(kwargs or {}))
        known = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        for tensor in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                size = tensor.untyped_storage().nbytes()
                self.live += size
                self.most = max(self.most, self.live)
                weakref.finalize(tensor.untyped_storage(), self._freed, size)
        return found

    def _freed(self, size):
        self.live -= size


WIDTH, LAYERS = 64, 16
ALL = WIDTH * WIDTH * LAYERS


def peak(make_optimizer) -> tuple[int, int]:
    """Bytes of moments between steps, and what a step takes beyond them at most."""
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = make_optimizer(module)
    stepped(module, optimizer)
    stepped(module, optimizer)
    with Bytes() as counted:
        optimizer.step()
    return sum(value.nbytes for value in moments(optimizer).values()), counted.most


def test_moments_take_half_of_the_bytes_and_a_step_widens_one_chunk_at_a_time():
    one_by_one = {"lr": 0.1, "foreach": False}
    exact, exact_peak = peak(lambda m: torch.optim.AdamW(m.parameters(), **one_by_one))
    layer = 4 * WIDTH * WIDTH
    found, found_peak = peak(
        lambda m: LowPrecisionState(torch.optim.AdamW(m.parameters(), **one_by_one), chunk_bytes=4 * layer)
    )
    assert exact == 8 * ALL
    assert found == 4 * ALL
    # Two layers' two moments, widened; of one layer the float32 noise, and what AdamW itself takes.
    assert exact_peak <= 3 * layer
    assert found_peak <= 4 * layer + 3 * layer
    _, at_once = peak(lambda m: LowPrecisionState(torch.optim.AdamW(m.parameters(), **one_by_one)))
    assert at_once > 2 * LAYERS * layer
    assert found + found_peak < 0.75 * exact


def test_nearest_rounding_stops_a_second_moment_and_stochastic_rounding_does_not():
    """It is to fall by 0.1 % in each step, and half a unit in the last place is 0.2 to 0.4 %."""
    found = {}
    for rounding in ("nearest", "stochastic", None):
        parameter = nn.Parameter(torch.zeros(2000))
        optimizer = torch.optim.Adam([parameter], lr=0.0, betas=(0.9, 0.999))
        if rounding is not None:
            optimizer = LowPrecisionState(optimizer, rounding=rounding)
        for step in range(400):
            parameter.grad = torch.full_like(parameter, 1.0 if step < 100 else 0.0)
            optimizer.step()
        found[rounding] = optimizer.state[parameter]["exp_avg_sq"].double().mean().item()
    assert abs(found["stochastic"] / found[None] - 1) < 0.01
    assert found["nearest"] > 1.2 * found[None]


def test_stochastic_rounding_gives_neighbours_and_the_mean_and_draws_from_no_other_generator():
    parameter = nn.Parameter(torch.zeros(40_000))
    optimizer = LowPrecisionState(torch.optim.SGD([parameter], lr=0.0, momentum=0.5))
    parameter.grad = torch.full_like(parameter, 1 + 2**-9)  # a quarter of the way to the next bfloat16
    before = torch.get_rng_state()
    optimizer.step()
    assert torch.equal(torch.get_rng_state(), before)
    found = optimizer.state[parameter]["momentum_buffer"]
    assert found.dtype == torch.bfloat16
    assert set(found.tolist()) == {1.0, 1 + 2**-7}
    assert abs((found > 1).double().mean().item() - 0.25) < 0.01


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_state_dict_continues_exactly_and_keeps_its_dtypes(rounding):
    module = Transformer()
    optimizer = LowPrecisionState(adamw(module), rounding=rounding, chunk_bytes=2000)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        stepped(module, optimizer, generator)
    other = copy.deepcopy(module)
    again = LowPrecisionState(adamw(other), rounding=rounding)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {value.dtype for value in moments(again).values()} == {torch.bfloat16}
    copied = pickle.loads(pickle.dumps(optimizer))
    assert copied.optimizer.param_groups[0] is copied.param_groups[0]
    for _ in range(3):
        states = generator.get_state()
        stepped(module, optimizer, generator)
        generator.set_state(states)
        stepped(other, again, generator)
    for name, value in module.named_parameters():
        assert torch.equal(value, dict(other.named_parameters())[name]), name
    for name, value in moments(optimizer).items():
        assert torch.equal(value, moments(again)[name]), name


def test_the_state_of_a_plain_optimizer_is_rounded_when_it_is_loaded():
    module = Transformer()
    plain = adamw(module)
    stepped(module, plain)
    optimizer = LowPrecisionState(adamw(module))
    state = plain.state_dict()
    for group in state["param_groups"]:
        group["rounded_steps"] = 0
    optimizer.load_state_dict(state)
    for name, value in moments(optimizer).items():
        assert torch.equal(value, moments(plain)[name].bfloat16()), name


def test_loading_a_state_never_widens_all_of_it():
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = LowPrecisionState(torch.optim.AdamW(module.parameters(), lr=0.1))
    stepped(module, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    again = LowPrecisionState(torch.optim.AdamW(module.parameters(), lr=0.1))
    with Bytes() as counted:
        again.load_state_dict(state)
    assert counted.most < 4 * WIDTH * WIDTH
    assert {value.dtype for value in moments(again).values()} == {torch.bfloat16}


def test_schedules_and_param_groups_are_the_optimizers_own():
    inner = sgd(Transformer())
    optimizer = LowPrecisionState(inner)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.05


def test_double_precision_and_scalars_and_what_has_no_gradient():
    module = nn.ParameterList([torch.zeros(3, dtype=torch.float64), torch.zeros(()), torch.zeros(2)])
    optimizer = LowPrecisionState(torch.optim.NAdam(module.parameters(), lr=0.1))
    for parameter in module[:2]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.step()
    states = list(optimizer.state.values())
    assert states[0]["exp_avg"].dtype == torch.bfloat16
    assert states[1]["exp_avg"].dtype == torch.float32
    assert module[0].dtype == torch.float64
    assert not module[2].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: LowPrecisionState(m), ["this is no optimizer", "got: Transformer"]),
        (lambda m: LowPrecisionState(LowPrecisionState(adamw(m))), ["this is no optimizer"]),
        (
            lambda m: LowPrecisionState(torch.optim.LBFGS(m.parameters())),
            ["LBFGS evaluates the loss itself"],
        ),
        (lambda m: LowPrecisionState(adamw(m), rounding="stochastc"), ["did you mean 'stochastic'"]),
        (lambda m: LowPrecisionState(adamw(m), seed=-1, chunk_bytes=0), ["seed", "chunk_bytes"]),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(PacelineError) as error:
        make(Transformer())
    assert all(word in str(error.value) for word in words), str(error.value)
