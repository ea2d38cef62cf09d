"""How the loss is computed: what it adds up, leaves out, and compares."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import tensors_in
from ...trainer.utils.nested import map_tensors
from .of_layers import training_step
from .of_outputs import rows_in
from .probe import probe
from .steps import LossTensors
from .subject import Subject
from .tables import is_whole_type


@probe("sum-reduction")
def losses_of_parts_of_a_batch(subject: Subject) -> Iterator[Evidence]:
    """The loss of a batch is the sum of the losses of its halves, and batches differ in size."""
    loader = subject.loaders.get("train")
    batch = next((one for one in subject.train_batches if rows_in(one) >= 8), None)
    if batch is None:
        return
    rows = rows_in(batch)
    half = rows // 2
    module = subject.copy(trained=False)
    module.eval()
    with torch.no_grad():
        whole = subject.step(module, batch).loss
        first = subject.step(module, map_tensors(batch, lambda t: t[:half])).loss
        second = subject.step(module, map_tensors(batch, lambda t: t[half:])).loss
    if whole is None or first is None or second is None or float(whole) == 0:
        return
    total = float(first) + float(second)
    sizes = subject.table("train").sizes
    uneven = len(set(sizes)) > 1 or getattr(loader, "batch_sampler", True) is None
    if abs(total - float(whole)) < 0.02 * abs(float(whole)) and uneven and len(sizes) > 1:
        yield Evidence(
            f"the loss is a sum over the batch, and batches have {min(sizes)} to {max(sizes)} samples: "
            "steps of larger batches are larger",
            "take the mean, or divide by a fixed number",
        )


@probe("zero-term")
def terms_that_are_logged_as_zero(subject: Subject) -> Iterator[Evidence]:
    """A term of the loss that training logs has been 0 in every step."""
    logged = subject.record.logged
    if len(logged) < 4:
        return
    for name in logged[-1]:
        values = [one[name] for one in logged if name in one]
        plain = name.rpartition("/")[2].lower()
        is_term = any(word in plain for word in ("loss", "kl", "penalty", "reg", "term", "aux", "consist"))
        if is_term and len(values) >= 4 and all(value == 0 for value in values):
            yield Evidence(
                f"{name} has been 0 in all of {len(values)} steps",
                "see what cuts it to 0: a clamp, a mask, a weight",
            )
            return


def _sequences(subject: Subject) -> Iterator[tuple[LossTensors, Tensor, dict[str, Tensor], Tensor]]:
    """Cross-entropies of tokens: the call, its target as rows, the batch's tensors, the loss."""
    _, step = training_step(subject, trained=True)
    tensors = dict(tensors_in(subject.train_batches[0]))
    for call in step.losses:
        target = call.target
        if call.function not in ("cross_entropy", "nll_loss") or not is_whole_type(target):
            continue
        rows = next((len(t) for t in tensors.values() if is_whole_type(t) and t.dim() == 2), 0)
        if rows and target.numel() % rows == 0 and target.numel() // rows > 2 and step.loss is not None:
            yield call, target.reshape(rows, -1), tensors, step.loss


@probe("padding-in-loss")
def loss_at_padded_positions(subject: Subject) -> Iterator[Evidence]:
    """Positions whose target is padding have a gradient."""
    for call, target, _, loss in _sequences(subject):
        padding = _padding_of(target)
        if padding is None or call.options.get("ignore_index", -100) == padding:
            continue
        grad = torch.autograd.grad(loss, call.output, retain_graph=True, allow_unused=True)[0]
        if grad is None:
            continue
        if call.target.dim() == 1:
            sizes = grad.abs().sum(1).reshape(target.shape)
        else:
            sizes = grad.abs().sum(1)
        tails = _tails(target, padding)
        if sizes.shape == tails.shape and bool((sizes[tails] > 0).all()):
            share = float(tails.float().mean())
            yield Evidence(
                f"{share:.0%} of the targets are padding ({padding}), and count in the loss",
                f"give cross_entropy ignore_index={padding}, or leave those positions out of the mean",
            )
            return


@probe("padding-in-loss")
def values_at_padded_positions(subject: Subject) -> Iterator[Evidence]:
    """Outputs for each position of padded sequences have a gradient where there is padding."""
    _, step = training_step(subject, trained=True)
    found = _padding_in(subject.train_batches[0])
    if step.loss is None or not step.loss.requires_grad or found is None:
        return
    place, rows, tails = found
    for call in step.losses:
        output = call.output
        if call.function in ("cross_entropy", "nll_loss") or not output.requires_grad:
            continue
        if output.numel() % tails.numel() or output.shape[: tails.dim()] != tails.shape:
            continue
        if call.function.startswith("binary") and torch.equal(call.target.to(rows.dtype), rows):
            continue  # labels that are mostly absent
        grad = torch.autograd.grad(step.loss, output, retain_graph=True, allow_unused=True)[0]
        sizes = None if grad is None else grad.abs().reshape(*tails.shape, -1).sum(-1)
        share = float(tails.float().mean())
        if sizes is not None and float((sizes[tails] > 0).float().mean()) > 0.9:
            yield Evidence(
                f"{share:.0%} of the positions of {place!r} are padding, and count in {call.function}",
                "leave padded positions out of the mean, by a mask or reduction='none'",
            )
            return


def _padding_in(batch: object) -> tuple[str, Tensor, Tensor] | None:
    """What of a batch ends in padding, in runs of different lengths: (place, rows, where padding is)."""
    for place, one in tensors_in(batch):
        if one.dim() < 2 or len(one) < 4 or one.shape[1] < 4 or one[0, 0].numel() > 64:
            continue
        if one.dtype.is_floating_point:  # positions with values are 1
            positions = (one.reshape(*one.shape[:2], -1) != 0).any(-1).long()
            tails = _tails(positions, 0)
            is_padded = _ends_in_runs(tails)
        else:
            padding = _padding_of(one) if is_whole_type(one) and one.dim() == 2 else None
            tails, is_padded = _tails(one, padding or 0), padding is not None
        if is_padded:
            return place, one, tails
    return None


def _tails(target: Tensor, padding: int) -> Tensor:
    """Where rows have padding up to their end."""
    is_padding = (target == padding).flip(1).long()
    return is_padding.cumprod(1).flip(1).bool()


def _padding_of(target: Tensor) -> int | None:
    """The value that ends rows in runs of different lengths, and is nowhere else."""
    last = target[:, -1]
    value = int(last.mode().values)
    tails = _tails(target, value)
    elsewhere = int(((target == value) & ~tails).sum())
    return value if _ends_in_runs(tails) and elsewhere == 0 and value >= 0 else None


def _ends_in_runs(tails: Tensor) -> bool:
    lengths = tails.sum(1)
    return float((lengths > 1).float().mean()) > 0.3 and len(lengths.unique()) > 2


@probe("unshifted-labels")
def targets_that_were_given(subject: Subject) -> Iterator[Evidence]:
    """A causal model's target at each position is the token that it was given there."""
    for call, target, tensors, _ in _sequences(subject):
        for place, one in tensors.items():
            if not is_whole_type(one) or one.shape != target.shape:
                continue
            if torch.equal(one.to(target), target) and _is_causal(subject, place, call):
                yield Evidence(
                    f"the target at each position is the token of {place!r} that the model gets there",
                    "shift by one: outputs up to the last position, targets from the second one",
                )
                return


def _is_causal(subject: Subject, place: str, call: LossTensors) -> bool:
    """Whether outputs depend on the input at their own position and not on later ones."""
    module = subject.copy()
    batch = subject.train_batches[0]
    known = {id(t) for p, t in tensors_in(batch) if p == place}
    rows = next(len(t) for p, t in tensors_in(batch) if p == place)

    def other_last(one: Tensor) -> Tensor:
        changed = one.clone()
        changed[:, -1] = one[:, -1].roll(1)
        return changed

    other = map_tensors(batch, lambda t: other_last(t) if id(t) in known else t)
    outputs = []
    for one in (batch, other):
        step = subject.evaluated(module, one)
        if not step.losses:
            return False
        output = step.losses[0].output
        if output.dim() == 3:
            is_last = output.shape[1] == call.output.shape[1] and step.losses[0].target.dim() == 2
            outputs.append(output.transpose(1, 2) if is_last else output)
        else:
            outputs.append(output.reshape(rows, -1, output.shape[-1]))
    gap = (outputs[0] - outputs[1]).abs().amax((0, 2))
    return float(gap[:-1].max()) <= 1e-5 * float(outputs[0].abs().max()) and float(gap[-1]) > 0
