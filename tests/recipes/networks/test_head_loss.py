"""The loss of a head in chunks: the numbers of the plain one, in less memory, whatever the head is."""

from functools import partial

import pytest
import torch
from helpers.allocations import most_allocated
from torch import nn
from torch.nn import functional as F

from paceline import PacelineError
from paceline.recipes.networks.head_loss import IGNORED, mean_loss, token_losses

WORDS, WIDTH = 101, 16
SOME = 7 * WORDS * 4  # bytes of the logits of seven tokens


class Adapted(nn.Module):
    """A head with an adapter, as peft makes them."""

    def __init__(self):
        super().__init__()
        self.base, self.out_features = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False), WORDS
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WORDS, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


HEADS = {
    "linear": lambda: nn.Linear(WIDTH, WORDS, bias=False),
    "frozen": lambda: nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False),
    "bias": lambda: nn.Linear(WIDTH, WORDS),
    "adapter": Adapted,
}


def batch(dtype, tokens=33):
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(WORDS, (4, tokens), generator=draw)
    targets[0, :5] = targets[3, -9:] = IGNORED
    return torch.randn(4, tokens, WIDTH, generator=draw, dtype=dtype), targets


def trained(head, dtype, loss):
    """The loss, and the gradients of the hidden states and of what the head trains."""
    hidden, targets = batch(dtype)
    hidden.requires_grad_()
    head.zero_grad()
    found = loss(hidden, head, targets)
    found.backward()
    return [found.detach(), hidden.grad, *(p.grad.clone() for p in head.parameters() if p.requires_grad)]


def plain(hidden, head, targets, smoothing=0.0):
    logits = head(hidden).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)


def in_chunks(hidden, head, targets, smoothing=0.0):
    return mean_loss(hidden, head, targets, most=SOME, smoothing=smoothing)[0]


def token_by_token(hidden, head, targets):
    losses = token_losses(hidden, head, targets, most=SOME)
    assert losses.shape == targets.shape
    assert not losses[targets == IGNORED].any()
    return losses.sum() / (targets != IGNORED).sum()


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("loss", [in_chunks, token_by_token])
@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradients_are_those_of_all_logits(head, loss, dtype, near):
    torch.manual_seed(0)
    made = HEADS[head]().to(dtype)
    for found, expected in zip(trained(made, dtype, loss), trained(made, dtype, plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=near, atol=near)


@pytest.mark.parametrize("head", HEADS)
def test_label_smoothing_is_torchs(head):
    torch.manual_seed(0)
    made = HEADS[head]().double()
    losses = (partial(in_chunks, smoothing=0.2), partial(plain, smoothing=0.2))
    for found, expected in zip(*(trained(made, torch.float64, one) for one in losses), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("loss", [in_chunks, token_by_token])
@pytest.mark.parametrize("head", ["linear", "bias"])
def test_in_bf16_sums_over_chunks_are_in_float32(head, loss):
    torch.manual_seed(0)
    made = HEADS[head]()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = trained(made, torch.float32, loss), trained(made, torch.float32, plain)
    assert found[0].dtype == torch.float32
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-5)  # bf16 has 3 digits
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("head", ["linear", "bias"])
def test_a_backward_may_follow_with_another_factor(head):
    torch.manual_seed(0)
    made = HEADS[head]()
    once = trained(made, torch.float32, in_chunks)
    scaled = trained(made, torch.float32, lambda *given: 8 * in_chunks(*given))
    for one, other in zip(once, scaled, strict=True):
        torch.testing.assert_close(8 * one, other)


def test_a_second_derivative_is_refused():
    hidden, targets = batch(torch.float32)
    loss = in_chunks(hidden.requires_grad_(), HEADS["linear"](), targets)
    with pytest.raises(PacelineError, match="second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_nothing_to_learn_is_a_loss_of_zero():
    hidden, targets = batch(torch.float32)
    for most in (SOME, 2**20):
        loss, count = mean_loss(hidden, HEADS["linear"](), torch.full_like(targets, IGNORED), most=most)
        assert (loss.item(), count.item()) == (0, 0)


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("head", ["linear", "bias"])
def test_it_compiles_into_one_graph(head):
    torch.manual_seed(0)
    made = HEADS[head]()
    compiled = torch.compile(in_chunks, backend="aot_eager", fullgraph=True)
    for found, expected in zip(
        trained(made, torch.float32, compiled), trained(made, torch.float32, plain), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("head", ["linear", "frozen", "bias"])
@pytest.mark.parametrize("trains", [True, False])
def test_all_logits_are_never_there(head, trains, tmp_path):
    words, width, tokens, rows = 50_304, 16, 1024, 32
    hidden = torch.randn(tokens, width, requires_grad=True)
    made, targets = nn.Linear(width, words, bias=head == "bias"), torch.randint(words, (tokens,))
    made.requires_grad_(head != "frozen")

    def step(most):
        with torch.set_grad_enabled(trains):
            loss, _ = mean_loss(hidden, made, targets, most=most)
        if trains:
            loss.backward()

    whole = most_allocated(lambda: step(2**40), tmp_path / "whole.json")
    chunks = most_allocated(lambda: step(4 * words * rows), tmp_path / "chunks.json")
    weights = trains * (head != "frozen") * 3 * 4 * words * width
    assert whole >= (1 + trains) * 4 * words * tokens
    assert chunks <= 4 * 4 * words * rows + weights + 2 * hidden.nbytes < 0.15 * whole


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch has it since 2.13")
def test_the_function_of_torch_adds_up_in_bf16():
    """Where this fails, ``mean_loss`` may call it."""
    torch.manual_seed(0)
    hidden, head = torch.randn(4096, 64).bfloat16(), nn.Linear(64, 5000, bias=False).bfloat16()
    targets, options = torch.randint(5000, (4096,)), torch.nn.LinearCrossEntropyOptions()
    found = F.linear_cross_entropy(hidden, head.weight, targets, options=options)
    right = F.cross_entropy(head(hidden).float(), targets)
    assert abs(found.item() - right.item()) > 0.005 * right.item()
    ours, _ = mean_loss(hidden, head, targets, most=64 * 5000 * 4)
    assert ours.item() == pytest.approx(right.item(), rel=1e-5)
