"""What outputs depend on: the inputs, the other rows of the batch; and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import tensors_in
from ...trainer.utils.nested import map_tensors
from .probe import probe
from .subject import Subject
from .tables import is_whole_type

_KEPT = 3


def rows_in(batch: Any) -> int:
    """How many rows a batch has, where all its tensors have as many; else 0."""
    sizes = {len(t) if t.dim() else -1 for _, t in tensors_in(batch)}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else 0


def _batch(subject: Subject) -> tuple[Any, int]:
    """A batch of samples as the loader counts them."""
    loader: Any = subject.loaders.get("train")
    size = getattr(loader, "batch_size", None)
    for batch in subject.train_batches:
        rows = rows_in(batch)
        if (
            rows >= 6
            and (size is None or rows <= size)
            and (subject.dataset("train") is None or size is not None)
        ):
            return batch, rows
    raise LookupError("no batch has several rows")


@probe("constant-output")
def outputs_of_other_inputs(subject: Subject) -> Iterator[Evidence]:
    """Outputs are equal whatever the inputs are."""
    batch, rows = _batch(subject)
    module = subject.copy()
    before = subject.evaluated(module, batch).prediction(rows)
    if before is None or before.numel() < rows or not before.dtype.is_floating_point:
        return
    order = torch.arange(rows).roll(1)
    other = map_tensors(batch, lambda t: _changed(t, order))
    after = subject.evaluated(module, other).prediction(rows)
    if after is None or after.shape != before.shape:
        return
    size = float(before.abs().max())
    equal = float((before - after).abs().max()) <= 1e-6 * size + 1e-12
    if equal and size > 0 and not _draws(subject, module, batch, rows):
        yield Evidence(
            "the outputs are equal for other inputs: nothing of the inputs reaches them",
            "see which layer gives a constant: an activation, a mask, a norm over one value",
        )


def _changed(one: Tensor, order: Tensor) -> Tensor:
    moved = one[order.to(one.device)]
    if not one.dtype.is_floating_point:
        return moved
    noise = torch.randn(moved.shape, generator=torch.Generator().manual_seed(4)).to(moved)
    return moved + 0.5 * noise * moved.std()


@probe("mixed-rows")
def outputs_of_other_rows(subject: Subject) -> Iterator[Evidence]:
    """In eval mode, a row's output is another one beside other rows."""
    batch, rows = _batch(subject)
    if any(t.dim() > 1 and t.shape[0] == t.shape[1] == rows for _, t in tensors_in(batch)):
        return  # relations between the rows
    module = subject.copy()
    before = subject.evaluated(module, batch).prediction(rows)
    if before is None or (before.dim() > 1 and before.shape[1] == rows) or before.dim() == 0:
        return
    order = torch.arange(rows).roll(2)
    order[_KEPT] = _KEPT
    is_mixed = False
    for seed in (1, 2):
        before = subject.evaluated(module, batch, seed).prediction(rows)
        other = map_tensors(batch, lambda t: _other_rows(t, order))
        after = subject.evaluated(module, other, seed).prediction(rows)
        again = subject.evaluated(module, batch, seed).prediction(rows)
        if before is None or after is None or again is None or not before.dtype.is_floating_point:
            return
        gap = float((before[_KEPT] - after[_KEPT]).abs().max())
        if float((before - again).abs().max()) > 0:
            return
        is_mixed = gap > 1e-3 * float(before.abs().max())
        if not is_mixed:
            return
    if is_mixed and not _draws(subject, module, batch, rows):
        yield Evidence(
            f"row {_KEPT} of the outputs changes when only the other rows of the batch do, in eval mode",
            "see over which axis softmax, norms, reshapes and recurrent layers go: axis 0 is the batch",
        )


def _other_rows(one: Tensor, order: Tensor) -> Tensor:
    moved = one[order.to(one.device)]
    if one.dtype.is_floating_point and one.dim() > 1:
        noise = 0.5 * torch.randn(moved.shape, generator=torch.Generator().manual_seed(4)).to(moved)
        changed = moved + noise * moved.std()
        changed[_KEPT] = one[_KEPT]
        return changed
    return moved


def _draws(subject: Subject, module: nn.Module, batch: Any, rows: int) -> bool:
    """Whether outputs depend on what is drawn in the step."""
    one, other = (subject.evaluated(module, batch, seed).prediction(rows) for seed in (1, 2))
    return one is None or other is None or not torch.equal(one, other)


@probe("surplus-outputs")
def outputs_without_a_class(subject: Subject) -> Iterator[Evidence]:
    """The output has more classes than the labels ever are."""
    calls = [
        c for c in subject.seen.losses_in("train", "cross_entropy", "nll_loss") if len(c.output.shape) > 1
    ]
    train = subject.table("train")
    classes = [t for t in train.targets.values() if is_whole_type(t)]
    if not calls or len(classes) != 1 or not calls[0].target.from_batch or not train.is_whole:
        return
    labels = classes[0].flatten()
    if subject.val_loader is not None and not isinstance(subject.val_loader, Iterator):
        labels = torch.cat(
            [labels, *(t.flatten() for t in subject.table("val").targets.values() if is_whole_type(t))]
        )
    outputs = calls[0].output.shape[1] if len(calls[0].output.shape) != 3 else 0
    labels = labels[labels >= 0]
    is_dense = len(calls[0].output.shape) == 4 and len(calls[0].target.shape) == 3  # of pixels
    is_plain = len(calls[0].target.shape) <= 1 and classes[0][0].numel() == 1
    if not len(labels) or outputs > 10_000 or not (is_dense or is_plain):
        return
    counts = Counter(labels.tolist())
    absent = outputs - len(counts)
    is_full = len(labels) >= 10 * len(counts) and min(counts.values()) >= 3 and len(labels) >= 2 * outputs
    if absent > 0 and len(counts) > 1 and (is_full or outputs >= 10 * len(counts)):
        yield Evidence(
            f"the output has {outputs} classes, and the labels are {len(counts)} of them: "
            f"{min(counts)} to {max(counts)}",
            f"give the last layer {len(counts)} outputs, and labels from 0 on",
        )


@probe("majority-class")
def predictions_of_one_class(subject: Subject) -> Iterator[Evidence]:
    """After training, all predictions are one class, on validation data or else on training data."""
    if subject.is_cut:
        return
    module = subject.copy()
    predicted: list[int] = []
    labels: list[int] = []
    module.eval()
    with torch.no_grad():
        steps = [subject.step(module, batch, validation=True) for batch in subject.val_batches]
        if not any(step.losses for step in steps):
            steps = [subject.step(module, batch) for batch in subject.train_batches]
    for step in steps:
        for call in step.losses[:1]:
            output, target = call.output, call.target
            if call.function in ("cross_entropy", "nll_loss") and output.dim() == 2 and target.dim() == 1:
                predicted += output.argmax(1).tolist()
                labels += target.tolist()
            elif call.function.startswith("binary") and output.numel() == target.numel() == len(output):
                middle = 0.0 if "logits" in call.function else 0.5
                predicted += (output.flatten() > middle).int().tolist()
                labels += (target.flatten() > 0.5).int().tolist()
    share = labels.count(predicted[0]) / len(labels) if labels else 0.0
    if len(labels) >= 32 and len(set(predicted)) == 1 and 0.5 < share < 1:
        yield Evidence(
            f"all {len(labels)} predictions are class {predicted[0]}, which {share:.0%} of the labels are",
            "weight the loss or the samples by class, and watch a metric that counts each class alike",
        )


@probe("argmax-axis")
def argmax_of_a_square(subject: Subject) -> Iterator[Evidence]:
    """An argmax in validation has no axis, or one of as many positions as there are classes."""
    losses = list(subject.seen.losses_in("train"))
    matching = [one.output.shape for one in losses if not one.target.from_batch]
    is_matching = any(len(shape) == 2 and shape[0] == shape[1] for shape in matching)
    moved = {one.output.shape for one in losses if one.output.made_by in ("Transpose", "Permute")}
    for call in subject.seen.calls_of("argmax", phase="val"):
        shape = call.inputs[0].shape if call.inputs else ()
        axis = call.options.get("dim", call.options.get("1", call.options.get("axis")))
        is_whole = axis is None and len(shape) == 2 and shape[0] == shape[1] > 1 and is_matching
        is_ambiguous = axis == 1 and len(shape) == 3 and shape[1] == shape[2]
        if is_whole or (is_ambiguous and any(one[1:] == shape[1:] for one in moved)):
            yield Evidence(
                f"argmax of outputs {shape} with dim={axis}", "give it the axis of classes: mostly the last"
            )
