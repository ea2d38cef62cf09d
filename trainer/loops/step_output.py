"""Reads what a user's step returned: a loss, perhaps its weight, perhaps values to log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import PacelineError
from ..metrics.logger import TOKENS
from ..metrics.store import MetricStore
from ..utils.nested import describe

_RETURN = "a Tensor, or a mapping with 'loss' (and optionally 'weight' and values to log)"


def read_training_output(output: Any, weight: Any, store: MetricStore, where: str) -> tuple[Tensor, Any]:
    """The loss to go backward from and the weight that was returned with it, else ``weight``.

    Values beside them in a mapping are logged.

    Raises:
        PacelineError: for an output without a loss, or one that cannot be trained on.
    """
    if isinstance(output, Tensor):
        loss = output
    elif isinstance(output, Mapping):
        if "loss" not in output:
            raise PacelineError(
                "training_step returned a mapping without 'loss'",
                code="loss-not-usable",
                where=where,
                got=f"keys {list(output)}",
                allowed=_RETURN,
                fix="name the value to train on 'loss'",
            )
        loss, given = output["loss"], output.get("weight")
        if given is not None:
            weight = _checked_weight(given, where)
            store.log(TOKENS, weight, reduce="sum")
        log_rest(output, store, weight)
    elif isinstance(output, (int, float)):
        raise _bad_loss(output, where)
    else:
        raise PacelineError(
            "training_step returned no loss",
            code="loss-not-usable",
            where=where,
            got="None" if output is None else describe(output),
            allowed=_RETURN,
            fix="return loss (or set automatic_optimization = False to do backward and step yourself)",
        )
    if not isinstance(loss, Tensor) or not loss.requires_grad or loss.numel() != 1:
        raise _bad_loss(loss, where)
    return loss, weight


def _checked_weight(weight: Any, where: str) -> Any:
    if isinstance(weight, Tensor) and weight.numel() == 1 and not weight.is_complex():
        return weight
    if isinstance(weight, (int, float)):
        return weight
    raise PacelineError(
        "the weight that training_step returned must be a scalar",
        code="loss-weight",
        where=where,
        got=describe(weight),
        allowed="a number, or a tensor of one element",
    )


def log_rest(output: Mapping[str, Any], store: MetricStore, weight: Any) -> None:
    """Log what a returned mapping holds beside ``loss`` and ``weight``."""
    for name, value in output.items():
        if name not in ("loss", "weight"):
            _log_returned(name, value, weight, store)


def _log_returned(name: str, value: Any, weight: Any, store: MetricStore, place: str = "") -> None:
    try:
        store.log(name, value, weight=weight)
    except PacelineError as error:
        step = {"train": "training_step", "val": "validation_step"}.get(store.phase, "test_step")
        fix = f"return {'the loss alone' if step == 'training_step' else 'nothing'}, or log scalars: "
        what = "\n".join(line for line in str(error).splitlines() if not line.startswith("  fix: "))
        raise PacelineError(
            what,
            code="not-loggable",
            where=f"{place or f'{name!r} in the mapping'} that {step} returned, which is logged",
            fix=f"{fix}self.log({name!r}, value.mean())",
        ) from None


def log_evaluation_output(output: Any, store: MetricStore) -> None:
    """Log what a validation or test step returned: a Tensor is ``loss``, a mapping its values."""
    if isinstance(output, Mapping):
        weight = output.get("weight")
        for name, value in output.items():
            if name != "weight":
                _log_returned(name, value, weight, store)
    elif isinstance(output, Tensor):
        _log_returned("loss", output, None, store, "the tensor")


def _bad_loss(loss: Any, where: str) -> PacelineError:
    if not isinstance(loss, Tensor):
        return PacelineError(
            "the loss that training_step returned must be a tensor",
            code="loss-not-usable",
            where=where,
            got=f"{loss!r} ({type(loss).__name__})"[:120],
            allowed=_RETURN,
            fix="return the loss as it was computed, without .item() or float()",
        )
    if loss.numel() != 1:
        return PacelineError(
            "the loss that training_step returned must be a scalar",
            code="loss-not-usable",
            where=where,
            got=describe(loss),
            allowed="a tensor of one element",
            fix="take its mean: loss.mean(), or reduction='mean' in the loss function",
        )
    return PacelineError(
        "training_step returned a loss without a gradient",
        code="loss-not-usable",
        where=where,
        got="a detached tensor (requires_grad is False)",
        fix="remove .detach(), .item() and torch.no_grad() between the model and the loss",
    )


def some_weights(place: str) -> PacelineError:
    """The error for a step in which only some micro-batches came with a weight."""
    return PacelineError(
        "training_step returned a 'weight' for some micro-batches of a step only",
        code="loss-weight",
        where=place,
        fix="return a weight always, or never",
    )


def weights_of_some_ranks(place: str, without: list[int]) -> PacelineError:
    """The error for a first step in which these ranks came without a weight, and others with one."""
    shown = ", ".join(map(str, without[:6])) + (" ..." if len(without) > 6 else "")
    return PacelineError(
        "training_step returned a 'weight' on some ranks only",
        code="loss-weight",
        where=place,
        got=f"none on rank{'s' if len(without) > 1 else ''} {shown}",
        fix="return a weight always, or never: 0 where nothing counts",
    )


def other_ranks_weights(place: str, weight: Any) -> PacelineError:
    """The error for a rank that in a later step does otherwise than all did in the first."""
    now, before = ("without", "with") if weight is None else ("with", "without")
    return PacelineError(
        f"training_step returned its loss {now} a 'weight', and {before} one in the first step: the other "
        "ranks would wait for this one",
        code="loss-weight",
        where=place,
        fix="return a weight always, or never: 0 where nothing counts",
    )
