"""What the loss depends on: the data, what is trained, and each of its terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import tensors_in
from .of_layers import training_step
from .probe import probe
from .subject import Subject
from .terms import idle_terms


@probe("zero-term")
def terms_without_effect(subject: Subject) -> Iterator[Evidence]:
    """A term of the loss moves no weight: not for any batch, before and after training."""
    modules = [subject.copy(trained=trained) for trained in (False, True)]
    idle: list[set[str]] = []
    for module in modules:
        for batch in subject.train_batches:
            loss = subject.step(module, batch).loss
            if loss is None or not loss.requires_grad:
                return
            idle.append({f"{number} {node.name()}" for number, node in idle_terms(loss, module)})
    if len(idle) < 4:
        return
    for term in sorted(set.intersection(*idle)):
        number, _, name = term.partition(" ")
        yield Evidence(
            f"term {number} of the loss, made by {name.partition('Backward')[0].lower()}, has a gradient "
            f"of 0 in {len(idle)} steps",
            "see what cuts it to 0: a weight, a clamp, a mask, equal arguments",
        )


@probe("swapped-arguments")
def divergence_from_the_output(subject: Subject) -> Iterator[Evidence]:
    """kl_div gets what is trained as its target, and something that is not trained as its input."""
    module, step = training_step(subject)
    weights = subject.trained_weights(module)
    for call in step.losses:
        if call.function != "kl_div" or not weights:
            continue
        if _depends(call.target, weights) and not _depends(call.output, weights):
            yield Evidence(
                "kl_div gets as its target what is trained, and as its input what is not",
                "the input is the log of what is trained, and the target what it should become",
            )


def _depends(tensor: Tensor, weights: Sequence[Tensor]) -> bool:
    if not tensor.requires_grad:
        return False
    found = torch.autograd.grad(tensor.sum(), weights, retain_graph=True, allow_unused=True)
    return any(one is not None for one in found)


@probe("constant-loss")
def gradients_of_no_data(subject: Subject) -> Iterator[Evidence]:
    """The gradient of the loss is the same for batches that differ."""
    module, batches = subject.copy(), subject.train_batches
    weights = [p for p in module.parameters() if p.requires_grad]
    if len(batches) < 2 or not weights or _are_equal(*batches[:2]):
        return
    found = []
    for batch in batches[:2]:
        loss = subject.step(module, batch).loss
        if loss is None or not loss.requires_grad:
            return
        grads = torch.autograd.grad(loss, weights, allow_unused=True)
        found.append([one for one in grads if one is not None])
    first, second = found
    is_any = len(first) == len(second) and any(bool(one.any()) for one in first)
    if is_any and all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        yield Evidence(
            "batches that differ give the same gradient: the loss does not depend on the data",
            "see where outputs leave the graph: argmax, a comparison, detach, a term that is overwritten",
        )


def _are_equal(one: object, other: object) -> bool:
    """Whether batches have the same values, or cannot be compared."""
    first, second = (dict(tensors_in(batch)) for batch in (one, other))
    if first.keys() != second.keys():
        return True
    pairs = ((mine, second[place]) for place, mine in first.items())
    return all(a.shape != b.shape or torch.equal(a, b) for a, b in pairs)
