"""What optimizers hold, and how they move it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

import torch
from torch import nn

from ...callbacks.checks.finding import Evidence
from .of_layers import training_step
from .probe import probe
from .subject import Subject

_NORMS: tuple[type[nn.Module], ...] = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
)
_NORMS += (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.RMSNorm)
_STRONG = 0.05
_DECOUPLED = ("AdamW", "Lion", "NAdamW", "Muon")


@probe("decay-on-norms")
def norms_that_decay(subject: Subject) -> Iterator[Evidence]:
    """Norms decay strongly, or although there is a group without decay."""
    norms = {
        id(p): f"{name}.{key}"
        for name, part in subject.module.named_modules()
        if isinstance(part, _NORMS) or "norm" in type(part).__name__.lower()
        for key, p in part.named_parameters(recurse=False)
    }
    for optimizer in subject.record.optimizers:
        groups = optimizer.param_groups
        decays = [group.get("weight_decay", 0) or 0 for group in groups]
        has_exempt = any(not decay and group["params"] for decay, group in zip(decays, groups, strict=True))
        found = [
            (norms[id(p)], decay)
            for decay, group in zip(decays, groups, strict=True)
            for p in group["params"]
            if decay and id(p) in norms
        ]
        matters = has_exempt or any(decay >= _STRONG for _, decay in found)
        if found and matters:
            name, decay = found[0]
            yield Evidence(
                f"{len(found)} weights of norms, {name} first, have a weight decay of {decay:g}",
                "put weights with one axis into a group with weight_decay=0",
            )


@probe("decay-on-norms")
def norms_that_sgd_decays(subject: Subject) -> Iterator[Evidence]:
    """Most of what an optimizer takes off a norm in a step is its decay."""
    seen = subject.seen
    names = {id(facts.parameter): name for name, facts in seen.parameters.items()}
    norms = {
        id(p) for part in subject.module.modules() if isinstance(part, _NORMS) for p in part.parameters()
    }
    for optimizer in subject.record.optimizers:
        for group in optimizer.param_groups:
            decay = group.get("weight_decay", 0) or 0
            for p in group["params"]:
                facts = seen.parameters.get(names.get(id(p), ""))
                if id(p) not in norms or not decay or facts is None or not facts.gradient_norms:
                    continue
                is_added = not type(optimizer).__name__.startswith(_DECOUPLED)
                if is_added and decay * float(p.detach().norm()) > 0.3 * median(facts.gradient_norms) > 0:
                    yield Evidence(
                        f"{names[id(p)]} of a norm has a decay of {decay:g}, as large as its gradient",
                        "put weights with one axis into a group with weight_decay=0",
                    )


@probe("heavy-decay")
def decay_that_outweighs_gradients(subject: Subject) -> Iterator[Evidence]:
    """The decay is larger than the gradients, or shrinks weights to nothing in some steps."""
    seen = subject.seen
    names = {id(facts.parameter): name for name, facts in seen.parameters.items()}
    before = {} if isinstance(subject.first, Exception) else dict(subject.first.named_parameters())
    for optimizer in subject.record.optimizers:
        is_decoupled = type(optimizer).__name__.startswith(_DECOUPLED) or optimizer.defaults.get(
            "decoupled_weight_decay", False
        )
        for group in optimizer.param_groups:
            decay = group.get("weight_decay", 0) or 0
            if is_decoupled and decay >= 1:
                yield Evidence(
                    f"a weight decay of {decay:g}, where 0.01 to 0.1 is usual", "take a smaller decay"
                )
                return
            if is_decoupled or decay < 0.02:
                continue
            larger = []
            for p in group["params"]:
                facts = seen.parameters.get(names.get(id(p), ""))
                if facts is not None and facts.gradient_norms and p.dim() > 1:
                    first = before.get(names[id(p)], p)  # what decays has shrunk since
                    larger.append(decay * float(first.detach().norm()) > 0.7 * facts.gradient_norms[0])
            if larger and sum(larger) >= 0.5 * len(larger):
                yield Evidence(
                    f"the weight decay of {decay:g} times the weights is larger than the gradients of "
                    f"{sum(larger)} of {len(larger)} weights",
                    "take a smaller decay",
                )
                return


@probe("heavy-decay")
def penalty_in_the_loss(subject: Subject) -> Iterator[Evidence]:
    """The gradient of the loss points along the weights themselves: a penalty rules it."""
    module, step = training_step(subject)
    if step.loss is None or not step.loss.requires_grad:
        return
    weights = [p for p in module.parameters() if p.requires_grad and p.dim() > 1]
    if not weights:
        return
    grads = torch.autograd.grad(step.loss, weights, allow_unused=True)
    both = [
        (w.detach().flatten(), g.flatten()) for w, g in zip(weights, grads, strict=True) if g is not None
    ]
    if len(both) < 1 or sum(len(w) for w, _ in both) < 50:
        return
    w, g = torch.cat([a for a, _ in both]), torch.cat([b for _, b in both])
    along = float((w @ g) / (w.norm() * g.norm() + 1e-12))
    each = [float((a @ b) / (a.norm() * b.norm() + 1e-12)) for a, b in both if len(a) >= 20]
    if along > 0.7 and each and min(each) > 0.5:
        yield Evidence(
            f"the gradient of the loss points along the weights (cosine {along:.2f}), as of a penalty",
            "give the penalty a small factor, such as 1e-4",
        )


@probe("optimizer-overlap")
def weights_of_two_optimizers(subject: Subject) -> Iterator[Evidence]:
    """An optimizer has all weights of another one too."""
    optimizers = subject.record.optimizers
    owners = [{id(p) for group in one.param_groups for p in group["params"]} for one in optimizers]
    for i, mine in enumerate(owners):
        for j, other in enumerate(owners):
            if i != j and other and other < mine and len(owners) == 2:
                yield Evidence(
                    f"optimizer {i} also has all {len(other)} weights of optimizer {j}",
                    "give each optimizer the parameters of its own part",
                )
                return


@probe("not-in-optimizer")
def weights_of_no_optimizer(subject: Subject) -> Iterator[Evidence]:
    """Trainable weights get gradients, and no optimizer has them."""
    left = [n for n, f in subject.seen.parameters.items() if not f.optimized and f.gradients]
    left = [n for n in left if subject.seen.parameters[n].parameter.requires_grad]
    if left:
        yield Evidence(
            f"{len(left)} trainable weights, {left[0]} first, get gradients and are in no optimizer",
            "give the optimizer all parameters that are to be trained, or freeze the others",
        )


@probe("low-rate")
def weights_that_hardly_move(subject: Subject) -> Iterator[Evidence]:
    """In the whole run no weight would move by a hundredth of itself."""
    trainer = subject.trainer
    moves = [
        f.relative for f in subject.seen.parameters.values() if f.relative and f.parameter.requires_grad
    ]
    matrices = [
        f.relative for f in subject.seen.parameters.values() if f.relative and f.parameter.dim() > 1
    ]
    moves = matrices or moves
    if not moves or trainer.global_step < 4:
        return
    largest = max(median(one) for one in moves)
    steps = trainer.global_step if not subject.is_cut else 0
    if 0 < largest < 1e-5 or (steps and 0 < largest * steps < 3e-3):
        many = f" in {steps} steps" if steps else " in a step"
        share = largest * (steps or 1)
        yield Evidence(
            f"the weight that moves most moves by {share:.1e} of itself{many}",
            "take a larger learning rate: paceline.tools.find_learning_rate tries them out",
        )


@probe("no-update")
def weights_that_do_not_move(subject: Subject) -> Iterator[Evidence]:
    """No weight has changed in the fit."""
    if isinstance(subject.first, Exception) or subject.trainer.global_step < 2:
        return
    first = dict(subject.first.named_parameters())
    trained = {n: p for n, p in subject.module.named_parameters() if p.requires_grad and n in first}
    if trained and all(torch.equal(first[n].detach(), p.detach().cpu()) for n, p in trained.items()):
        kinds = Counter(type(one).__name__ for one in subject.record.optimizers)
        yield Evidence(
            f"no weight has changed in {subject.trainer.global_step} steps of {', '.join(kinds)}",
            "see the learning rate, its schedule, and where gradients are zeroed",
        )
