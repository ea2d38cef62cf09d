"""Gradients that a module adds up under manual optimization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...callbacks import Callback
from ...callbacks.checks.finding import Evidence
from .not_here import NotHere
from .probe import probe
from .subject import Subject
from .trials import short_fit

_STEPS = 40
_SCALED = ("DivBackward", "MulBackward")


class _Batches(Callback):
    """Counts batches."""

    count = 0

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        self.count += len(batches)


def _is_scaled(loss: Tensor) -> bool:
    """Whether a loss was divided or multiplied, as a whole or in its terms."""
    nodes = [loss.grad_fn]
    for _ in range(3):
        if any(node is not None and node.name().startswith(_SCALED) for node in nodes):
            return True
        nodes = [inner for node in nodes if node is not None for inner, _ in node.next_functions]
    return False


def backwards_of_updates(subject: Subject) -> list[list[tuple[int, bool, str]]]:
    """For each update its backward passes: the number of the batch, whether it is scaled, what made it."""
    module, batches = subject.copy(trained=False), _Batches()
    backward = module.manual_backward
    updates: list[list[tuple[int, bool, str]]] = [[]]

    def noted(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        kind = loss.grad_fn.name() if loss.grad_fn is not None else ""
        if not any(p.grad is not None and bool(p.grad.any()) for p in module.parameters()):
            updates[-1].clear()  # gradients were zeroed
        updates[-1].append((batches.count, _is_scaled(loss), kind))
        backward(loss, *args, **kwargs)

    vars(module)["manual_backward"] = noted
    handle = register_optimizer_step_pre_hook(lambda *_: updates.append([]))
    try:
        short_fit(subject, module, [batches], _STEPS)
    finally:
        handle.remove()
    return [one for one in updates[:-1] if one]


@probe("undivided-accumulation")
def losses_that_add_up(subject: Subject) -> Iterator[Evidence]:
    """Several batches, or parts of one, are gone backward from for an update, and no loss is divided."""
    if subject.module.automatic_optimization or len(subject.record.optimizers) != 1:
        raise NotHere("one optimizer under manual optimization")
    updates = backwards_of_updates(subject)
    several = [one for one in updates if len(one) > 1 and not any(scaled for _, scaled, _ in one)]
    if not several or len(several) < 0.8 * len(updates):
        return
    over_batches = all(len({batch for batch, *_ in one}) == len(one) for one in several)
    over_parts = all(len(one) > 2 and len({kind for *_, kind in one}) == 1 for one in several)
    if over_batches or over_parts:
        count = max(len(one) for one in several)
        what = "batches" if over_batches else "parts of a batch"
        yield Evidence(
            f"an update has the sum of the gradients of {count} {what}, and no loss is divided by {count}",
            f"divide each loss by {count}",
        )
