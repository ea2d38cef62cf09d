"""What the targets are, and what inputs tell of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import tensors_in
from ...trainer.utils.nested import map_tensors
from .probe import probe
from .relation import relates, rows_of, stands_out, targets_of
from .subject import Subject
from .tables import Table, is_whole_type

_FEWEST = 48
_MOST_COLUMNS = 4096
_PERMUTATIONS = 25


@probe("target-leak")
def columns_that_tell_the_target(subject: Subject) -> Iterator[Evidence]:
    """A column of the inputs is the target, a multiple of it, or has one value for each class."""
    table = subject.table("train")
    target = next((t for t in table.targets.values() if len(t) and t[0].numel() == 1), None)
    if target is None or len(target) < _FEWEST:
        return
    flat = target.reshape(len(target)).double()[:2000]
    if float(flat.std()) == 0:
        return
    is_class = is_whole_type(target) or len(flat.unique()) == 2
    if sum(one[0].numel() for one in table.inputs.values() if len(one)) == 1:
        return  # a function of one number is what is learned
    for place, one in table.inputs.items():
        if len(one) != len(target) or one[0].numel() > 100 * _MOST_COLUMNS:
            continue
        columns = one.reshape(len(one), -1)[:2000, :_MOST_COLUMNS].double()
        found = _telling(columns, flat, is_class, is_whole_type(one))
        if found is not None:
            yield Evidence(
                f"column {found} of the input {place!r} tells the target exactly",
                "leave out of the inputs what is not known before the target",
            )
            return


def _telling(columns: Tensor, target: Tensor, is_class: bool, are_tokens: bool) -> int | None:
    spread = columns.std(0, correction=0)
    if not is_class:
        if are_tokens:
            return None
        standard = (columns - columns.mean(0)) / (spread + 1e-12)
        correlation = (
            (standard * ((target - target.mean()) / target.std(correction=0))[:, None]).mean(0).abs()
        )
        close = (correlation > 0.9999) & (spread > 1e-9)
        return int(close.nonzero()[0]) if bool(close.any()) else None
    kinds = target.unique()
    if len(kinds) > 50:
        return None
    first = torch.stack([columns[(target == kind).nonzero()[0, 0]] for kind in kinds])
    own = first[torch.searchsorted(kinds, target)]
    constant = (columns == own).all(0)
    distinct = torch.stack([first[i] != first[j] for i in range(len(kinds)) for j in range(i)]).all(0)
    both = constant & distinct
    if are_tokens and columns.shape[1] > 1:
        both[0] = False  # the first token may be what is asked for
    return int(both.nonzero()[0]) if bool(both.any()) else None


@probe("shuffled-targets")
def targets_without_a_relation(subject: Subject) -> Iterator[Evidence]:
    """Neither the trained module nor simple regressions find anything of the inputs in the targets."""
    table = subject.table("train")
    split = _sides(table)
    is_known = any(one.target.from_batch for one in subject.seen.losses_in("train"))
    if split is None or not (is_known or len(table.inputs) + len(table.targets) == 2):
        return
    inputs, target, place = split
    if relates(inputs, target):
        return
    if _model_relates(subject, place):
        return
    yield Evidence(
        f"on rows that were not trained on, {place!r} in any other order fits the inputs as well, "
        f"and simple regressions over {len(target)} rows find no relation either",
        "see that inputs and targets are read, sorted and shuffled in one order",
    )


def _sides(table: Table) -> tuple[Tensor, Tensor, str] | None:
    """Inputs and targets as rows of numbers; of two inputs without a target, one and the other."""
    places = {p: t for p, t in table.inputs.items() if len(t) == table.rows}
    wanted = {p: t for p, t in table.targets.items() if len(t) == table.rows and t[0].numel() <= 256}
    if not wanted and len(places) == 2:
        last = list(places)[-1]
        wanted = {last: places.pop(last)}
    if not wanted or not places:
        return None
    place, target = next(iter(wanted.items()))
    if any(torch.equal(target, one) for one in places.values()):
        return None
    rows, targets = rows_of(list(places.values())), targets_of(target)
    if rows is None or len(rows) < 2 * _FEWEST or len(rows) != len(targets) or float(targets.std()) == 0:
        return None
    return rows, targets, place


def _model_relates(subject: Subject, place: str) -> bool:
    """Whether the trained module's loss on validation rows is lower than with targets of other rows."""
    module = subject.copy()
    module.eval()
    true, others = 0.0, [0.0] * _PERMUTATIONS
    looked = 0
    for batch in subject.val_batches:
        count = next((len(t) for p, t in tensors_in(batch) if p == place), 0)
        if count < 8:
            continue
        with torch.no_grad():
            loss = subject.step(module, batch).loss
            if loss is None:
                raise LookupError("the step returns no loss")
            true += float(loss)
            for number in range(len(others)):
                order = torch.randperm(count, generator=torch.Generator().manual_seed(number))
                other = with_place(batch, place, lambda one, order=order: one[order])
                found = subject.step(module, other).loss
                others[number] += float(found) if found is not None else 0.0
        looked += count
    if looked < 16:
        return False
    return stands_out(true, others)


def with_place(batch: object, place: str, change: object) -> object:
    """A batch whose tensor at a place is changed."""
    known = {id(t) for p, t in tensors_in(batch) if p == place}
    return map_tensors(batch, lambda one: change(one) if id(one) in known else one)  # type: ignore[operator]


@probe("constant-targets")
def targets_of_one_value(subject: Subject) -> Iterator[Evidence]:
    """All targets of the training data are one value."""
    table = subject.table("train")
    calls = [one for one in subject.seen.losses_in("train") if one.target.from_batch]
    if not any(one.target.minimum == one.target.maximum for one in calls):
        return
    for place, one in table.targets.items():
        if one.numel() >= 32 and bool((one == one.flatten()[0]).all()) and not _is_only_for_form(one):
            yield Evidence(
                f"all {len(one)} targets {place!r} are {one.flatten()[0].item():g}",
                "see how targets are read and converted",
            )


def _is_only_for_form(target: Tensor) -> bool:
    return target.dtype == torch.bool


@probe("target-scale")
def targets_far_from_outputs(subject: Subject) -> Iterator[Evidence]:
    """Targets of a regression are far larger than what a fresh network gives."""
    calls = list(subject.seen.losses_in("train", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
    values = subject.table("train").values()
    if not calls or values is None:
        return
    first = calls[0]
    if not first.target.from_batch or not first.output.requires_grad:
        return
    size = float(values.double().square().mean().sqrt())
    first_size = math.hypot(first.output.mean, first.output.std)
    if 0 < size < 0.02 and size < first_size / 10:
        yield Evidence(
            f"targets have a size of {size:.3g}, and the first outputs one of {first_size:.2g}",
            "train on targets that are standardised, and scale predictions back",
        )
    if size > 50 and size > 20 * max(abs(first.output.maximum), abs(first.output.minimum)):
        yield Evidence(
            f"targets have a size of {size:.3g}, and the first outputs at most {first.output.maximum:.2g}",
            "train on targets that are standardised, and scale predictions back",
        )


@probe("one-hot-targets")
def classes_as_numbers(subject: Subject) -> Iterator[Evidence]:
    """A squared error is taken from the numbers of classes."""
    target = subject.table("train").classes()
    for call in subject.seen.losses_in("train", "mse_loss", "l1_loss", "smooth_l1_loss"):
        shape = call.output.shape
        is_one = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
        if target is None or not call.target.whole or not is_one or not call.output.requires_grad:
            return
        kinds = target.unique()
        few = 3 <= len(kinds) <= 20 and int(kinds[0]) == 0 and int(kinds[-1]) == len(kinds) - 1
        if few and call.target.dtype != "float64" and call.target.maximum <= len(kinds):
            yield Evidence(
                f"{call.function} compares an output with the numbers of {len(kinds)} classes",
                "give the network an output for each class, and use cross_entropy",
            )
        return


@probe("one-hot-targets")
def soft_targets_of_another_sum(subject: Subject) -> Iterator[Evidence]:
    """Targets of cross_entropy that are no distribution over the classes."""
    calls = [c for c in subject.seen.losses_in("train", "cross_entropy") if "float" in c.target.dtype]
    if calls and all(len(c.target.shape) > 1 and not c.target.sums_to_one for c in calls):
        yield Evidence(
            "targets of cross_entropy do not sum to 1 over the classes", "divide them by their sum"
        )
