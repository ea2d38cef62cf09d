"""How layers are put together: shared, in a row without an activation, frozen, never called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch import nn

from ...callbacks.checks.finding import Evidence
from .probe import probe
from .steps import LeafCall, Step
from .subject import Subject

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_PASSED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Identity)


def training_step(subject: Subject, trained: bool = False) -> tuple[nn.Module, Step]:
    """A training step of a copy, with its graph."""
    if not subject.train_batches:
        raise LookupError("there was no training step")
    module = subject.copy(trained)
    return module, subject.step(module, subject.train_batches[0])


@probe("shared-weights")
def one_layer_in_several_places(subject: Subject) -> Iterator[Evidence]:
    """A container has the same layer several times."""
    for name, part in subject.module.named_modules():
        if not isinstance(part, (nn.Sequential, nn.ModuleList)):
            continue
        counts = Counter(id(one) for one in part._modules.values() if one is not None)
        for one in part:
            size = sum(p.numel() for p in one.parameters())
            if size and counts[id(one)] > 1 and any(p.requires_grad for p in one.parameters()):
                yield Evidence(
                    f"{name or type(part).__name__} has the same {type(one).__name__} at "
                    f"{counts[id(one)]} places: they share their weights",
                    "make a layer for each place, as in [Block() for _ in range(n)]",
                )
                break


@probe("shared-weights")
def one_layer_under_two_names(subject: Subject) -> Iterator[Evidence]:
    """A part has two names in the same owner, as two heads have that are one layer."""
    names: dict[int, str] = {}
    for name, part in subject.module.named_modules(remove_duplicate=False):
        if next(part.parameters(), None) is None:
            continue
        first = names.setdefault(id(part), name)
        owner, _, own = name.rpartition(".")
        if first != name and first.rpartition(".")[0] == owner and not own.isdigit():
            yield Evidence(f"{first} and {name} are one layer", "make a layer for each")


@probe("shared-weights")
def one_norm_for_several_layers(subject: Subject) -> Iterator[Evidence]:
    """A norm with weights or statistics is called several times in one call of what has it."""
    module, step = training_step(subject)
    for name, part in module.named_modules():
        parent = name.rpartition(".")[0]
        is_norm = isinstance(part, _NORMS) or (isinstance(part, nn.LayerNorm) and parent)
        if not is_norm or not any(p.requires_grad for p in part.parameters()):
            continue
        calls = step.calls[name]
        siblings = {
            step.calls[one] for one, _ in module.named_modules() if one.rpartition(".")[0] == parent and one
        }
        if calls > 1 and min(siblings - {0}, default=calls) < calls and (step.calls[parent] or 1) < calls:
            yield Evidence(
                f"{name}, one {type(part).__name__}, normalises what {calls} places give in a step",
                "make a norm for each place",
            )


@probe("missing-activation")
def linear_layers_in_a_row(subject: Subject) -> Iterator[Evidence]:
    """A linear layer gets what another one returned, with nothing in between."""
    _, step = training_step(subject)
    source: dict[int, LeafCall] = {}
    counts = Counter(leaf.name for leaf in step.leaves)
    for leaf in step.leaves:
        before = source.get(id(leaf.given)) if leaf.given is not None else None
        together = before is not None and before.name.rpartition(".")[0] == leaf.name.rpartition(".")[0]
        if (
            before is not None
            and together
            and _could_be_one(before.part, leaf.part)
            and counts[leaf.name] == 1
        ):
            yield Evidence(
                f"{leaf.name} follows {before.name} with nothing in between: both are one linear layer",
                "put an activation between them",
            )
            return
        if leaf.output is None:
            continue
        if isinstance(leaf.part, _PASSED) and before is not None:
            source[id(leaf.output)] = before
        elif isinstance(leaf.part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            source[id(leaf.output)] = leaf


def _could_be_one(before: nn.Module, after: nn.Module) -> bool:
    trains = all(p.requires_grad for part in (before, after) for p in part.parameters())
    if isinstance(before, nn.Linear) and isinstance(after, nn.Linear):
        narrow = before.out_features < before.in_features
        return trains and not narrow and after is not before
    if isinstance(before, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and type(after) is type(before):
        plain = before.groups == after.groups == 1  # type: ignore[union-attr]
        wide = all(max(one.kernel_size) > 1 for one in (before, after))
        return trains and plain and wide and after is not before
    return False


@probe("frozen-output")
def last_layer_frozen(subject: Subject) -> Iterator[Evidence]:
    """The layer whose output the loss gets is frozen, and layers before it train."""
    module, step = training_step(subject)
    outputs = {id(one.output) for one in step.losses}
    own = [leaf for leaf in step.leaves if next(leaf.part.parameters(), None) is not None]
    if not own or subject.record.optimizers[1:]:
        return
    last = next((leaf for leaf in reversed(own) if id(leaf.output) in outputs), own[-1])
    if last.output is None or not last.output.requires_grad:
        return  # of a part that nothing trains through, as a teacher
    if step.calls[last.name] > 1 or any(p.requires_grad for p in last.part.parameters()):
        return
    before = {leaf.name for leaf in own if any(p.requires_grad for p in leaf.part.parameters())}
    inside = last.name.rpartition(".")[0]
    if (
        before
        and not _is_adapted(module, inside)
        and isinstance(last.part, (nn.Linear, nn.Conv2d, nn.Conv1d))
    ):
        yield Evidence(
            f"the last layer, {last.name}, is frozen, while {len(before)} layers before it train",
            "train the last layer: requires_grad_(True)",
        )


def _is_adapted(module: nn.Module, name: str) -> bool:
    """Whether what has the layer trains weights beside it, as adapters do."""
    if not name:
        return False
    owner = module.get_submodule(name)
    others = [p for p in owner.parameters() if p.requires_grad]
    return bool(others) and len(list(owner.children())) <= 4 and not isinstance(owner, nn.Sequential)


def _pairs(one: nn.Module, other: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(one.parameters(), other.parameters(), strict=True)


@probe("frozen-norms-move")
def statistics_of_frozen_norms(subject: Subject) -> Iterator[Evidence]:
    """Batch norms whose weights are frozen have moved their running statistics."""
    if isinstance(subject.first, Exception):
        return
    before = dict(subject.first.named_modules())
    moved = []
    for name, part in subject.module.named_modules():
        if not isinstance(part, _NORMS) or part.running_mean is None or not part.affine:
            continue
        frozen = not any(p.requires_grad for p in part.parameters())
        old = before.get(name)
        if old is None or any(not torch.equal(a, b.cpu()) for a, b in _pairs(old, part)):
            continue  # a copy of others that follows them
        if frozen and not torch.equal(old.running_mean, part.running_mean.cpu()):
            moved.append(name)
    if moved and any(p.requires_grad for p in subject.module.parameters()):
        yield Evidence(
            f"{len(moved)} batch norms with frozen weights, {moved[0]} first, have moved their statistics",
            "keep the frozen part in eval mode while it trains",
        )


@probe("unused-part")
def parts_never_called(subject: Subject) -> Iterator[Evidence]:
    """A part that an optimizer has is never called in training, and its weights stay as they were."""
    if isinstance(subject.first, Exception) or subject.trainer.global_step < 2:
        return
    seen = subject.seen
    if not seen.watched:
        return
    first = dict(subject.first.named_parameters())
    parts: dict[str, list[str]] = defaultdict(list)
    for name, facts in seen.parameters.items():
        owner = name.rpartition(".")[0]
        if owner and facts.optimized and facts.parameter.requires_grad and not facts.gradients:
            same = name in first and torch.equal(first[name], facts.parameter.detach().cpu())
            called = seen.layers.get(owner)
            if same and (called is None or not called.calls.get("train")):
                parts[owner].append(name)
    lone = [one for one in parts if not _has_called_siblings(subject, one) and "pooler" not in one]
    if lone:
        yield Evidence(
            f"{lone[0]} is never called in a training step, and none of its weights has a gradient",
            "use it in forward, or take it out",
        )


def _has_called_siblings(subject: Subject, name: str) -> bool:
    """Whether it is one of several alike, of which others are called: experts, or heads of tasks."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:depth])
        held = subject.module.get_submodule(owner)
        if isinstance(held, (nn.ModuleList, nn.ModuleDict)):
            called = (subject.seen.layers.get(f"{owner}.{one}") for one in held._modules)
            if any(one is not None and one.calls.get("train") for one in called):
                return True
    return False
