"""The cross-entropy of a language model's head, without the logits of all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from paceline import PacelineError
from paceline.recipes.networks.document_attention import dtype_of_products

IGNORED = -100
"""A target that is none, as ``F.cross_entropy`` leaves it out."""
MOST_LOGITS = 2**29
"""Bytes of logits in float32 that may be there at once: of 2,668 tokens with a vocabulary of 50,304."""


def mean_loss(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    *,
    most: int | None = None,
    liger: bool = False,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy over the tokens that are learned, and how many these are.

    Where the head is an ``nn.Linear`` and the logits of all tokens take more than ``most`` bytes, so many
    tokens at a time are done, and the gradients are computed beside the loss: the head runs once. Of
    weights that are split over ranks a chunk's logits are computed again in the backward pass. Any other
    head, with adapters or in float8 say, gives all logits at once.

    ``torch.nn.functional.linear_cross_entropy`` is another such function; of inputs in bfloat16 it adds up
    the loss in bfloat16.

    Args:
        hidden: What the head takes, (..., width).
        head: Gives logits (..., vocabulary).
        targets: The token that follows each, or ``IGNORED``; (...), int64.
        most: Bytes of logits in float32; none: ``MOST_LOGITS``.
        liger: Use the kernel of the package ``liger-kernel``, on a GPU
            (https://arxiv.org/abs/2410.10989).
        smoothing: The part of a target that is spread over all tokens alike, from 0 to 1.

    Returns:
        The loss, a scalar of at least float32, 0 where nothing is learned; and the number of tokens, for
        ``{"loss": loss, "weight": count}``.

    Example:
        >>> hidden, head = torch.randn(2, 8, 4), nn.Linear(4, 100, bias=False)
        >>> targets = torch.randint(100, (2, 8))
        >>> loss, count = mean_loss(hidden, head, targets, most=1200)  # three tokens at a time
        >>> plain = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())
        >>> int(count), bool(torch.isclose(loss, plain))
        (16, True)
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    count = (targets != IGNORED).sum()
    rows = rows_at_once(hidden, head, most)
    if liger:
        total = _by_liger(hidden, head, targets, smoothing)
    elif rows >= len(hidden):
        total = _losses(hidden, repeatable(head, hidden.device), targets, "sum", smoothing)
    elif _is_split(head):
        total = sum(_in_chunks(hidden, head, targets, rows, "sum", smoothing))  # type: ignore[assignment]
    else:
        weight, bias, dtype = repeatable(head, hidden.device)
        bias = None if bias is None else bias.to(dtype)
        cast = hidden.to(dtype), weight.to(dtype), bias
        total = _Chunked.apply(  # type: ignore[no-untyped-call]
            *cast, targets, rows, smoothing, torch.is_grad_enabled()
        )
    return total / count.clamp(min=1), count


def token_losses(
    hidden: Tensor, head: nn.Module, targets: Tensor, *, most: int | None = None, smoothing: float = 0.0
) -> Tensor:
    """The cross-entropy of each token; 0 where the target is ``IGNORED``. Arguments as of ``mean_loss``.

    Returns:
        Of the shape of ``targets``, at least float32.
    """
    flat, its = hidden.flatten(0, -2), targets.flatten()
    rows, how = rows_at_once(flat, head, most), repeatable(head, flat.device)
    if rows >= len(flat):
        return _losses(flat, how, its, "none", smoothing).view_as(targets)
    return torch.cat(_in_chunks(flat, how, its, rows, "none", smoothing)).view_as(targets)


def repeatable(head: Any, device: torch.device) -> Any:
    """A head for ``logits_of``, which each rank may ask for another number of chunks, or for one.

    Under ZeRO 3 each call of a layer is a collective, which all ranks must make: its weights are used, and
    the layer is not called.
    """
    if type(head) is not nn.Linear or _is_split(head):
        return head
    weight: Any = head.weight
    return weight, head.bias, dtype_of_products(device, weight.dtype)


def logits_of(hidden: Tensor, head: Any) -> Tensor:
    """The logits, (..., vocabulary).

    Weights are cast here, and not by autocast, which has one copy for all chunks and sums its gradients.

    Args:
        hidden: (..., width).
        head: A module, or of ``repeatable``.
    """
    if isinstance(head, nn.Module):
        found: Tensor = head(hidden)
        return found
    weight, bias, dtype = head
    return F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def rows_at_once(hidden: Tensor, head: nn.Module, most: int | None = None) -> int:
    """How many tokens are done at a time: of a head that is not an ``nn.Linear`` all.

    Ranks may have other numbers of tokens, and so of chunks; under ZeRO 3 each call of a layer is a
    collective, and the weights of such a head are not known here, to be used without one.
    """
    most = MOST_LOGITS if most is None else most
    return max(1, most // (4 * head.out_features)) if type(head) is nn.Linear else len(hidden)


def _is_split(head: Any) -> bool:
    """Whether ranks that have the same tokens share out the weights."""
    return hasattr(head.weight, "placements")


def _losses(hidden: Tensor, head: Any, targets: Tensor, reduction: str, smoothing: float = 0.0) -> Tensor:
    """By a head as ``logits_of`` takes it."""
    logits = logits_of(hidden, head)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        exact, targets, ignore_index=IGNORED, reduction=reduction, label_smoothing=smoothing
    )


def _in_chunks(
    hidden: Tensor, head: Any, targets: Tensor, rows: int, reduction: str, smoothing: float = 0.0
) -> list[Tensor]:
    """The losses of so many tokens at a time, whose logits are computed again in the backward pass."""
    return [
        checkpoint(_losses, x, head, y, reduction, smoothing, use_reentrant=False, preserve_rng_state=False)
        for x, y in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]


class _Chunked(torch.autograd.Function):
    """The sum of the losses. Its gradients do not depend on what follows, but for a factor."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        smoothing: float,
        trains: bool,
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.new_zeros((), dtype=exact)
        needed = [trains and needs for needs in ctx.needs_input_grad[:3]]
        of_hidden = torch.empty_like(hidden) if needed[0] else None
        of_weight = torch.zeros_like(weight, dtype=exact) if needed[1] else None
        of_bias = torch.zeros_like(bias, dtype=exact) if needed[2] else None  # type: ignore[arg-type]
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(hidden), rows):
                x, y = hidden[begin : begin + rows], targets[begin : begin + rows]
                logits = F.linear(x, weight, bias).to(exact)
                # Not in place: torch 2.11 compiles such a result without its gradients.
                total = total + F.cross_entropy(
                    logits, y, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
                )
                if not any(needed):
                    continue
                learned = (y != IGNORED)[:, None]
                kept = (smoothing - 1) * learned.to(exact)
                errors = logits.softmax(1)
                if smoothing:
                    errors = errors - smoothing / logits.shape[1]
                errors = errors.scatter_add_(1, y.clamp(min=0)[:, None], kept) * learned
                if of_bias is not None:
                    of_bias += errors.sum(0)
                errors = errors.to(weight.dtype)
                if of_hidden is not None:
                    of_hidden[begin : begin + rows] = errors @ weight
                if of_weight is not None:
                    of_weight += errors.T @ x
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            raise PacelineError(
                "mean_loss has no second derivative",
                code="backward-twice",
                fix="mean_loss(..., most=2**60)",
            )
        scaled = (
            None if one is None else (one.to(factor.dtype) * factor).to(ctx.dtype)
            for one in ctx.saved_tensors
        )
        return *scaled, None, None, None, None


def _by_liger(hidden: Tensor, head: Any, targets: Tensor, smoothing: float) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    total: Tensor = fused(head.weight, hidden, targets, head.bias)
    return total
