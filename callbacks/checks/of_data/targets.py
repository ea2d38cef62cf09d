"""Checks of targets: constant ones, those among the inputs, and those in another order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..finding import Evidence, check
from ..seen import BatchFacts, Seen

_COMPARED = {"cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
_COMPARED |= {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}

_CLASSES = 50


def _enough(seen: Seen) -> list[BatchFacts]:
    """Batches that show what all are like: a whole epoch, or at least 50."""
    batches = seen.batches.get("train", [])
    first = [one for one in batches if one.epoch == seen.first_epoch]
    return first if (seen.epoch_ended and first and first[-1].step < 50) or len(first) >= 50 else []


@check("constant-targets", at="steps")
def one_target_for_all(seen: Seen) -> Iterator[Evidence]:
    """All targets of an epoch that losses get from the batch are one value."""
    losses = [one for one in seen.losses_in("train") if one.function in _COMPARED]
    batches = _enough(seen)
    if not batches or not losses or not all(one.target.from_batch for one in losses):
        return
    for place in batches[0].targets:
        facts = [one.targets[place] for one in batches if place in one.targets]
        low, high = min(one.minimum for one in facts), max(one.maximum for one in facts)
        size = sum(one.shape[0] if one.shape else 1 for one in facts)
        taken = {value for one in losses for value in (one.target.minimum, one.target.maximum)}
        if low == high and taken == {low} and low not in (-1, -100) and size >= 16:
            yield Evidence(
                f"all {size} targets of the epoch are {low:g}", "look at how the labels are made"
            )


def _columns(seen: Seen) -> tuple[Tensor, Tensor, bool] | None:
    """Inputs as columns beside one target for each row, of the first batches; whether a loss takes it."""
    inputs, targets = [], []
    batches = [one for one in seen.batches.get("train", []) if one.inputs][:10]
    for one in batches:
        target = next(iter(one.targets.values()), None)
        main = max(one.inputs.values(), key=lambda facts: len(facts.shape) and facts.sample.numel())
        if target is None or len(one.targets) != 1 or not target.shape or len(main.shape) < 2:
            return None
        rows = target.sample.numel()
        if rows != target.shape[0] or main.shape[0] != rows:
            return None
        width = main.sample.numel() // rows
        whole = main.shape[1:].numel() if isinstance(main.shape, torch.Size) else _product(main.shape[1:])
        if width < 2 or width != whole:
            return None
        inputs.append(main.sample.reshape(rows, width).double())
        targets.append(target.sample.double())
    if not inputs or any(one.shape[1] != inputs[0].shape[1] for one in inputs):
        return None
    return torch.cat(inputs), torch.cat(targets), batches[0].targets_known or batches[0].tensors == 2


def _product(sizes: tuple[int, ...]) -> int:
    found = 1
    for one in sizes:
        found *= one
    return found


@check("target-leak", at="steps")
def target_among_the_inputs(seen: Seen) -> Iterator[Evidence]:
    """A column of the inputs is the target, or has one value for each class, in every row."""
    found = _columns(seen)
    if found is None or len(found[0]) < 48 or not found[2]:
        return
    inputs, targets, _ = found
    if len(targets.unique()) < 3 or seen.batches["train"][0].inputs == {}:
        return
    main = max(seen.batches["train"][0].inputs.values(), key=lambda one: one.sample.numel())
    if not main.dtype.startswith(("float", "bfloat")) or len(main.shape) != 2:
        return  # tokens and sequences hold what is to be recalled at times
    same = (inputs == targets[:, None]).all(0).nonzero().flatten().tolist()
    if not same:
        same = _columns_of_classes(inputs, targets)
    if same:
        yield Evidence(
            f"number {same[0]} of each input tells its target, in all {len(inputs)} samples seen",
            "take the target out of the inputs",
        )


def _columns_of_classes(inputs: Tensor, targets: Tensor) -> list[int]:
    """Columns that have one value for each class, and another for each."""
    classes = targets.unique()
    if not 1 < len(classes) <= min(_CLASSES, len(targets) // 4) or bool((targets != targets.round()).any()):
        return []
    rows = [inputs[targets == one] for one in classes]
    lowest = torch.stack([one.amin(0) for one in rows])
    constant = (lowest == torch.stack([one.amax(0) for one in rows])).all(0)
    distinct = (lowest.sort(0).values.diff(dim=0) != 0).all(0)
    found: list[int] = (constant & distinct).nonzero().flatten().tolist()
    return found
