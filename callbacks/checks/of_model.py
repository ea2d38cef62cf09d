"""Checks of a model's weights: whether what computes is what is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ...common.hidden_weights import HIDDEN_CURE, hidden_by_attribute
from ...errors import listed
from .finding import Evidence, check
from .layer_watch import NORMS
from .seen import ParameterFacts, Seen, Stranger
from .update_watch import parameters_of

_MOST_NAMES = 3
_EQUAL_ROWS = 3
_ENOUGH_UPDATES = 3


def optimized_ids(seen: Seen) -> set[int]:
    """The ids of what any optimizer has that the run knows of, or that was seen to update."""
    optimizers = {id(one): one for one in seen.trainer.optimizers}
    optimizers |= {id(update.optimizer): update.optimizer for update in seen.updates}
    return {id(p) for one in optimizers.values() for p in parameters_of(one)}


def _untrained(seen: Seen) -> list[tuple[Stranger, Tensor]]:
    """Tensors from outside that get gradients, and that nothing has changed."""
    optimized = optimized_ids(seen)
    found = [(one, one.parameter()) for one in seen.strangers if one.has_gradient and not one.changed]
    return [(one, tensor) for one, tensor in found if tensor is not None and id(tensor) not in optimized]


@check("hidden-weights", at="steps")
def weights_that_torch_does_not_find(seen: Seen) -> Iterator[Evidence]:
    """Layers or parameters in plain attributes compute, get gradients and stay as they are."""
    own = {id(p) for p in seen.module.parameters()}
    hidden = [(one, t) for one, t in _untrained(seen) if len(one.steps) > 1 and id(t) not in own]
    ids = {id(tensor) for _, tensor in hidden}
    known = bool(seen.watched) and seen.own_weights
    places = hidden_by_attribute(seen.module, objects=known)
    if not known:  # which weights are computed with
        ids = {id(w) for weights in places.values() for w in weights} - own - optimized_ids(seen)
    if not ids:
        return
    names = [place for place, weights in places.items() if any(id(w) in ids for w in weights)]
    if names and all(_is_asleep(seen, name) for name in names):
        return  # a frozen network that is kept out of checkpoints
    where = listed(names, _MOST_NAMES) if names else "what no attribute of the module has"
    what = "weight" if len(ids) == 1 else "weights"
    yield Evidence(
        f"{len(ids)} {what} in {where} get no update: parameters() does not find them",
        HIDDEN_CURE,
    )


def _is_asleep(seen: Seen, place: str) -> bool:
    """Whether all layers in an attribute are in eval mode, which nobody but the user has set."""
    path, _, name = place.rpartition(".")
    value = vars(seen.module.get_submodule(path)).get(name)
    inside = list(value.values()) if isinstance(value, dict) else value
    layers = (
        [one for one in inside if isinstance(one, nn.Module)] if isinstance(inside, (list, tuple)) else []
    )
    return bool(layers) and not any(part.training for one in layers for part in one.modules())


@check("layer-made-in-forward", at="steps")
def layers_new_in_each_step(seen: Seen) -> Iterator[Evidence]:
    """Parameters that are used in one step alone, and others in the next one."""
    new = [(one, t) for one, t in _untrained(seen) if one.is_parameter and len(one.steps) == 1]
    steps = {step for one, _ in new for step in one.steps}
    if len(steps) < 2 or len(steps) < min(3, len(seen.watched)):
        return
    first = min(steps)
    shapes = [tuple(t.shape) for one, t in new if first in one.steps]
    places = sorted({one.layer for one, _ in new if one.layer})
    where = f" in {places[0]}" if places else ""
    yield Evidence(
        f"each step makes new {_weights_of(shapes)}{where}: what it has learned is lost",
        "make the layer in __init__, and call it in the step",
    )


def _weights_of(shapes: Sequence[tuple[int, ...]]) -> str:
    first = "x".join(map(str, shapes[0])) or "1"
    return f"a weight of {first}" if len(shapes) == 1 else f"{len(shapes)} weights (one of {first})"


@check("weights-remade", at="steps")
def optimizers_with_weights_of_replaced_layers(seen: Seen) -> Iterator[Evidence]:
    """The optimizer has tensors that were the module's, and the module has others in their place."""
    late = _late(seen)
    if not late:
        return
    own = {id(p) for p in seen.module.parameters()}
    stale = [p for one in seen.trainer.optimizers for p in parameters_of(one) if id(p) not in own]
    if stale:
        yield Evidence(
            f"{listed(late, _MOST_NAMES)} came after the optimizer was built, which updates {len(stale)} "
            "weights that are no longer the module's",
            "replace layers in __init__, or change weights in place",
        )


@check("not-in-optimizer", at="steps")
def later_weights_in_no_optimizer(seen: Seen) -> Iterator[Evidence]:
    """Weights that were added or thawed after the optimizer was built."""
    late = _late(seen)
    own = {id(p) for p in seen.module.parameters()}
    stale = [p for one in seen.trainer.optimizers for p in parameters_of(one) if id(p) not in own]
    if late and not stale:
        yield Evidence(
            f"{listed(late, _MOST_NAMES)} gets gradients, and no optimizer has it: it came after them",
            "make it before configure_optimizers, or add it by optimizer.add_param_group",
        )


def _late(seen: Seen) -> list[str]:
    """Trainable weights of the module that get gradients, and that no optimizer has."""
    optimized = optimized_ids(seen)
    met = {id(one.parameter()): one for one in seen.strangers if one.is_parameter and one.has_gradient}
    changed = {key for key, one in met.items() if one.changed}
    once = {key for key, one in met.items() if len(one.steps) == 1}
    made_anew = {step for key in once for step in met[key].steps}
    found = []
    for name, parameter in seen.module.named_parameters():
        key = id(parameter)
        if not parameter.requires_grad or key in optimized or key in changed:
            continue
        if key in once and len(made_anew) > 1:
            continue  # it is another one in each step
        known = seen.parameters.get(name)
        if known is not None and known.parameter is parameter and isinstance(_owner(seen, name), NORMS):
            continue  # a thawed part may keep its norms as they were
        if key in met or parameter.grad is not None:
            found.append(name)
    return found


@check("equal-units", at="steps")
def units_that_stay_equal(seen: Seen) -> Iterator[Evidence]:
    """All rows of a weight are equal, and so are their gradients: they will stay so."""
    if not seen.own_weights:
        return
    judged = [(name, facts) for name, facts in seen.parameters.items() if _has_moved(facts)]
    if not judged:
        return
    with torch.no_grad():
        pairs = torch.stack([(f.parameter[0] == f.parameter[1]).all().cpu() for _, f in judged]).tolist()
        names = [
            name
            for (name, facts), equal in zip(judged, pairs, strict=True)
            if equal and bool((facts.parameter == facts.parameter[:1]).all())
        ]
    if names:
        count = len(seen.parameters[names[0]].parameter)
        yield Evidence(
            f"the {count} units of {listed(names, _MOST_NAMES)} started equal, and stay equal",
            "draw the weights at random, as by nn.init.kaiming_uniform_",
        )


def _has_moved(facts: ParameterFacts) -> bool:
    parameter = facts.parameter
    large = parameter.dim() > 1 and len(parameter) >= _EQUAL_ROWS and parameter[0].numel() > 1
    return large and parameter.requires_grad and facts.changed and facts.nonzero >= _ENOUGH_UPDATES - 1


@check("unused-part", at="end")
def a_part_whose_place_another_takes(seen: Seen) -> Iterator[Evidence]:
    """A part is never called, and its twin twice; or a numbered part between two that are called."""
    for name, part in _unused(seen):
        parent, _, own = name.rpartition(".")
        siblings = {
            other: one
            for other, one in seen.module.get_submodule(parent).named_children()
            if other != own and type(one) is type(part)
        }
        calls = {other: _calls(seen, f"{parent}.{other}".lstrip(".")) for other in siblings}
        stem = own.rstrip("0123456789")
        number = own[len(stem) :]
        if number and stem:
            beside = [f"{stem}{int(number) + shift}" for shift in (-1, 1)]
            if all(calls.get(other, 0) for other in beside):
                yield Evidence(
                    f"{name} is never called, while {beside[0]} and {beside[1]} are",
                    f"call it in forward, or remove it from {type(seen.module).__name__}",
                )
        twins = [
            o for o, one in siblings.items() if calls[o] > _once(seen) and _shapes(one) == _shapes(part)
        ]
        if twins and "_" in own:
            yield Evidence(
                f"{name} is never called, and {twins[0]}, of the same form, twice in each step",
                f"call {name} where it was meant",
            )


def _once(seen: Seen) -> int:
    """Watched calls of a part that is called once in each step."""
    return max(1, len({loss.step for loss in seen.losses_in("train")} or seen.watched))


def _calls(seen: Seen, name: str) -> int:
    inside = [facts for one, facts in seen.layers.items() if one == name or one.startswith(name + ".")]
    return max((facts.calls.get("train", 0) for facts in inside), default=0)


def _shapes(part: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in part.parameters()]


def _unused(seen: Seen) -> Iterator[tuple[str, nn.Module]]:
    """The outermost parts whose weights an optimizer has, without a call or a gradient."""
    if not seen.watched:
        return
    outer: list[str] = []
    for name, part in seen.module.named_modules():
        facts = [
            seen.parameters[f"{name}.{n}"]
            for n, _ in part.named_parameters()
            if f"{name}.{n}" in seen.parameters
        ]
        if not name or not facts or any(name.startswith(one + ".") for one in outer):
            continue
        inside = [one for one in seen.layers if one == name or one.startswith(name + ".")]
        called = any(seen.layers[one].calls for one in inside)
        idle = all(f.optimized and f.updates >= _ENOUGH_UPDATES and not f.gradients for f in facts)
        if idle and not called:
            outer.append(name)
            yield name, part


@check("shared-weights", at="steps")
def one_batch_norm_after_several_layers(seen: Seen) -> Iterator[Evidence]:
    """A batch norm has one mean for each channel, and several layers give it their outputs."""
    for name, facts in seen.layers.items():
        part = _part(seen, name)
        if isinstance(part, NORMS) and part.training and len(facts.fed_by) > 1:
            makers = sorted(facts.fed_by)
            if len({id(_part(seen, one)) for one in makers}) > 1:
                yield Evidence(
                    f"{name} is called after {makers[0]} and {makers[1]}: its statistics are mixed",
                    "make a norm for each of them",
                )


@check("shared-weights", at="start")
def one_block_repeated(seen: Seen) -> Iterator[Evidence]:
    """One block with batch norms stands several times in a row."""
    for name, children in _repeated(seen):
        if any(isinstance(part, NORMS) for part in children[0].modules()):
            yield _repeated_evidence(name, children)


def _repeated(seen: Seen) -> Iterator[tuple[str, list[nn.Module]]]:
    for name, part in seen.module.named_modules():
        if isinstance(part, (nn.ModuleList, nn.Sequential)):
            children = [part[i] for i in range(len(part))]
            same = any(a is b for a, b in pairwise(children))
            if same and next(children[0].parameters(), None) is not None:
                yield name, children


def _repeated_evidence(name: str, children: list[Any]) -> Evidence:
    times = sum(one is children[0] for one in children)
    return Evidence(
        f"{name} has one {type(children[0]).__name__} {times} times: all share its weights",
        "make several: [Block() for _ in range(n)], not [Block()] * n",
    )


def _owner(seen: Seen, name: str) -> nn.Module | None:
    return _part(seen, name.rpartition(".")[0])


def _part(seen: Seen, name: str) -> nn.Module | None:
    try:
        return seen.module.get_submodule(name)
    except AttributeError:
        return None
