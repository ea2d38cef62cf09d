"""The blocks a model repeats: what is sharded together, and computed again together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from ...errors import PacelineError


def find_units(module: nn.Module) -> list[nn.Module]:
    """The module's own ``shard_units()``, else its repeated blocks; outer ones win over inner ones.

    Repeated blocks are the members of a ``ModuleList`` or ``Sequential`` of at least two modules of one
    class that have parameters and submodules themselves. Where there are none, they are the modules whose
    class a Hugging Face model names in ``_no_split_modules``.

    Args:
        module: The module to search; its parameters may be on the meta device.

    Returns:
        The units; empty where nothing is repeated.

    Raises:
        PacelineError: for a ``shard_units()`` that gives something else than submodules.

    Example:
        >>> blocks = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)]
        >>> len(find_units(nn.Sequential(*blocks, nn.Linear(2, 1))))
        3
    """
    chosen = getattr(module, "shard_units", None)
    if callable(chosen):
        return _checked(module, chosen())
    units: list[nn.Module] = []
    inside: set[int] = set()
    for part in module.modules():
        if id(part) in inside or not isinstance(part, (nn.ModuleList, nn.Sequential)):
            continue
        blocks = [b for b in part if any(True for _ in b.children()) and any(True for _ in b.parameters())]
        kinds = [type(b) for b in blocks]
        repeated = [b for b in blocks if kinds.count(type(b)) > 1]
        units += repeated
        inside |= {id(m) for b in repeated for m in b.modules()}
    return units or _not_to_split(module)


def _not_to_split(module: nn.Module) -> list[nn.Module]:
    """What Hugging Face's models name for Accelerate and FSDP: a list of class names on the model."""
    names: set[str] = set()
    for part in module.modules():
        names.update(getattr(part, "_no_split_modules", None) or ())
    units: list[nn.Module] = []
    inside: set[int] = set()
    for part in module.modules():
        if type(part).__name__ in names and id(part) not in inside:
            units.append(part)
            inside |= {id(m) for m in part.modules()}
    return units


def _checked(module: nn.Module, given: Any) -> list[nn.Module]:
    parts = dict(module.named_modules())
    units = []
    for unit in given if isinstance(given, Iterable) else [given]:
        found = parts.get(unit) if isinstance(unit, str) else unit
        if not isinstance(found, nn.Module) or not any(found is p for p in parts.values()):
            raise PacelineError(
                "shard_units() gave what is no submodule",
                code="repeated-blocks",
                got=repr(unit)[:80],
                allowed="submodules, or their dotted names",
            )
        if type(found).forward is nn.Module.forward:
            raise PacelineError(
                "shard_units() gave a container, which is never called itself",
                code="repeated-blocks",
                got=type(found).__name__,
                fix="give what is in it: [*self.blocks]",
            )
        units.append(found)
    inner_first = {id(part): place for place, part in enumerate(parts.values())}
    return sorted({id(u): u for u in units}.values(), key=lambda unit: -inner_first[id(unit)])


def called_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost submodules with parameters that can be called: of a container, those inside it."""
    for child in module.children():
        if type(child).forward is nn.Module.forward:  # a list or a dict of modules
            yield from called_parts(child)
        elif any(True for _ in child.parameters()):
            yield child


def untied(module: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """The units whose parameters nobody else has; tied ones go into the outermost part together."""
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    free = []
    for unit in units:
        inside: dict[int, int] = {}
        for _, parameter in unit.named_parameters(remove_duplicate=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        if all(owners[key] == count for key, count in inside.items()):
            free.append(unit)
    return free


def outer_parts(strategy: str, module: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """Under manual optimization: the outermost parts that can be called, each a root of units.

    Args:
        strategy: The name, for messages.
        module: The user's.
        units: They are skipped.

    Raises:
        PacelineError: for parameters outside of them, and for parts that share some.
    """
    parts = list(called_parts(module))
    inside = {id(p) for part in parts for p in part.parameters()}
    own = [name for name, p in module.named_parameters() if id(p) not in inside]
    if own:
        raise PacelineError(
            f"strategy {strategy!r} under manual optimization shards the module's children, and these "
            "parameters are in none that has a forward",
            code="module-not-shardable",
            got=", ".join(own[:6]),
            fix="put them into a submodule with a forward",
        )
    names = {id(part): name for name, part in module.named_modules()}
    shared = [names[id(part)] for part in parts if not untied(module, [part])]
    if shared:
        raise PacelineError(
            f"strategy {strategy!r} under manual optimization shards the module's children, and these "
            "share parameters",
            code="module-not-shardable",
            got=", ".join(shared[:6]),
            fix="put the parts that share them into one submodule, or strategy='ddp'",
        )
    done = {id(unit) for unit in units}
    return [part for part in parts if id(part) not in done]
