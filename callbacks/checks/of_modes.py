"""Checks of train and eval modes, of frozen weights, and of gradients that do not arrive."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ...errors import listed
from .attributes import is_trained
from .finding import Evidence, check
from .layer_watch import DROPOUTS, NORMS
from .seen import ParameterFacts, Seen

_MOST_NAMES = 3
_ENOUGH_UPDATES = 3
_FIRST_STEPS = 10


@check("eval-mode-in-training", at="steps")
def trained_in_eval_mode(seen: Seen) -> Iterator[Evidence]:
    """Weights are trained in a part that is in eval mode, with dropout or batch norm inside."""
    asleep = [name for name in _asleep(seen.module) if _was_called(seen, name)]
    found = [name for name in asleep if name in seen.asleep or not _is_meant(seen, name)]
    if found:
        names = listed([name or type(seen.module).__name__ for name in found], _MOST_NAMES)
        yield Evidence(
            f"{names} is trained in eval mode: without dropout, and with fixed statistics of batch norms",
            "call train() before the step",
        )


def _asleep(module: nn.Module) -> list[str]:
    """The outermost trainable parts in eval mode in which that makes a difference; no bare norms."""
    found: list[str] = []
    kept = type(module).train is not nn.Module.train
    for name, part in module.named_modules():
        inside = any(name.startswith(outer + ".") or not outer for outer in found)
        own_train = kept or type(part).train is not nn.Module.train
        if part.training or inside or own_train or next(part.children(), None) is None:
            continue
        trained = sum(p.numel() for p in part.parameters() if p.requires_grad)
        norms = {id(p) for one in part.modules() if isinstance(one, NORMS) for p in one.parameters()}
        more = any(p.requires_grad and id(p) not in norms for p in part.parameters())
        # Adapters in a frozen network are trained in its eval mode.
        mostly = 2 * trained >= sum(p.numel() for p in part.parameters())
        if more and mostly and any(_differs(one) for one in part.modules() if not one.training):
            found.append(name)
    return found


def _differs(part: nn.Module) -> bool:
    """Whether eval mode makes a part compute otherwise."""
    if isinstance(part, (*DROPOUTS, nn.RNNBase)):
        return float(getattr(part, "p", getattr(part, "dropout", 0.0))) > 0
    if isinstance(part, nn.MultiheadAttention):
        return bool(part.dropout > 0)
    return isinstance(part, NORMS) and (not part.affine or is_trained(part))


def _is_meant(seen: Seen, name: str) -> bool:
    """Whether a hook puts this part, and not all that is trained, into eval mode before its first call."""
    inside = {id(p) for p in seen.module.get_submodule(name).parameters()}
    is_all = all(id(p) in inside for p in seen.module.parameters() if p.requires_grad)
    return not is_all and not any({True, False} <= modes for modes in _modes_inside(seen, name))


def _modes_inside(seen: Seen, name: str) -> list[set[bool]]:
    begin = f"{name}." if name else ""
    return [
        facts.modes.get("train", set()) for one, facts in seen.layers.items() if f"{one}.".startswith(begin)
    ]


def _was_called(seen: Seen, name: str) -> bool:
    """Whether training steps called a part in eval mode; if they are not watched, whether it is trained."""
    begin = f"{name}." if name else ""
    if not seen.watched:
        inside = [facts for one, facts in seen.parameters.items() if one.startswith(begin)]
        return seen.step <= _FIRST_STEPS and any(facts.gradients for facts in inside)
    return any(False in modes for modes in _modes_inside(seen, name))


@check("requires-grad-on-module", at="start")
def attribute_that_freezes_nothing(seen: Seen) -> Iterator[Evidence]:
    """``module.requires_grad = False`` sets an attribute of a layer."""
    for name, part in seen.module.named_modules():
        if vars(part).get("requires_grad") is False and any(p.requires_grad for p in part.parameters()):
            yield Evidence(
                f"{name or type(part).__name__}.requires_grad = False is an attribute, and freezes nothing",
                "call requires_grad_(False)",
            )


@check("no-gradient", at="steps")
def parts_that_no_gradient_reaches(seen: Seen) -> Iterator[Evidence]:
    """A part computes in training, an optimizer has its weights, and they never get a gradient."""
    without = {name for name, facts in seen.parameters.items() if _is_idle(facts)}
    if not without or not any(facts.gradients for facts in seen.parameters.values()):
        return
    cut = [name for name in _called_parts(seen, without) if _is_cut(seen, name, without)]
    cut = [name for name in cut if not _has_twin(seen, name, without)]
    outer = _outermost(seen, cut)
    if outer:
        under = all(seen.layers[name].calls_with_grad == 0 for name in cut)
        how = (
            "is called under no_grad" if under else "is cut off: its output is detached, or used as numbers"
        )
        yield Evidence(
            f"{listed(outer, _MOST_NAMES)} got no gradient in {_updates(seen, without)} updates: it {how}",
            "let its output reach the loss, or freeze it by requires_grad_(False)",
        )


def _updates(seen: Seen, names: set[str]) -> int:
    return min(seen.parameters[name].updates for name in names)


def _is_idle(facts: ParameterFacts) -> bool:
    trained = facts.optimized and facts.parameter.requires_grad
    return trained and facts.updates >= _ENOUGH_UPDATES and not facts.gradients


def _called_parts(seen: Seen, without: set[str]) -> list[str]:
    """Layers with weights of their own, none of which gets a gradient, that training steps call."""
    found = []
    for name, facts in seen.layers.items():
        own = {one for one in seen.parameters if one.rpartition(".")[0] == name}
        if (
            own
            and own <= without
            and facts.calls.get("train")
            and False not in facts.modes.get("train", set())
        ):
            found.append(name)
    return found


def _is_cut(seen: Seen, name: str, without: set[str]) -> bool:
    """Whether a layer's output is cut off from the loss, and not only unused."""
    facts = seen.layers[name]
    if facts.calls_with_grad == 0:
        return True
    trained = [
        other.order
        for one, other in seen.layers.items()
        if any(p.rpartition(".")[0] == one and f.gradients for p, f in seen.parameters.items())
    ]
    return bool(trained) and facts.order < min(trained)


def _has_twin(seen: Seen, name: str, without: set[str]) -> bool:
    """Whether another layer like this one is trained, whose target network it may be."""
    part = seen.module.get_submodule(name)
    shapes = [tuple(p.shape) for p in part.parameters()]
    own = name.rpartition(".")[2]
    for other, one in seen.module.named_modules():
        if other == name or type(one) is not type(part) or other.rpartition(".")[2] != own:
            continue
        names = [f"{other}.{n}" for n, _ in one.named_parameters()]
        same = [tuple(p.shape) for p in one.parameters()] == shapes
        if same and other.count(".") == name.count(".") and not any(n in without for n in names):
            return "." in name
    return False


def _outermost(seen: Seen, names: list[str]) -> list[str]:
    """The parts that have these layers and no other ones with weights."""
    chosen: list[str] = []
    cut = set(names)
    for name, part in seen.module.named_modules():
        if not name or any(name.startswith(one + ".") for one in chosen):
            continue
        owners = {
            f"{name}.{n}".rstrip(".")
            for n, one in part.named_modules()
            if next(one.parameters(recurse=False), None) is not None
        }
        if owners and owners <= cut:
            chosen.append(name)
    return chosen
