"""Wrong parameter groups of torch's optimizers: torch's errors name neither the group nor what it holds."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import PacelineError, listed, nearest

_SETTING_PEERS = {"learning_rate": "lr", "decay": "weight_decay", "wd": "weight_decay"}


def check_settings(optimizer: Optimizer) -> None:
    """Refuse a setting of a group that the optimizer would keep and never read.

    Raises:
        PacelineError: naming the group and the setting that was meant.
    """
    for number, group in enumerate(optimizer.param_groups):
        for key, ours in _SETTING_PEERS.items():
            if key in group and key not in optimizer.defaults and ours in optimizer.defaults:
                raise PacelineError(
                    f"configure_optimizers: {type(optimizer).__name__} does not read {key!r} of a group",
                    code="optimizers-wrong",
                    where=f"group {number}",
                    allowed=", ".join(optimizer.defaults),
                    meant=ours,
                )


def explain_groups(error: Exception, module: nn.Module) -> None:
    """Add to an error of an optimizer's constructor which of its parameters are wrong, and how.

    Args:
        error: What ``configure_optimizers`` raised.
        module: Whose parameters have names.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        mine = frame.f_locals
        if (
            frame.f_code.co_name == "__init__"
            and isinstance(mine.get("self"), Optimizer)
            and "params" in mine
        ):
            problem = next(_problems(mine["params"], module), None)
            if problem is not None:
                error.add_note("\n".join(f"{key}: {text}" for key, text in problem.items() if text))
            return


def _problems(params: Any, module: nn.Module) -> Iterator[dict[str, str | None]]:
    if isinstance(params, (nn.Module, Mapping, str, Tensor)):
        yield {"got": _shown(params), "fix": _cure(params)}
    elif isinstance(params, Sequence):
        if any(isinstance(one, Mapping) for one in params):
            yield from _in_groups(params)
            yield from _twice(params, module)
        else:
            yield from _in_list(params, "the parameters")


def _in_groups(groups: Sequence[Any]) -> Iterator[dict[str, str | None]]:
    for number, group in enumerate(groups):
        if not isinstance(group, Mapping):
            yield {"where": f"group {number}", "got": _shown(group), "fix": '{"params": ..., "lr": ...}'}
        elif "params" not in group:
            meant = nearest("params", map(str, group))
            yield {
                "where": f"group {number}",
                "got": f"a dict with the keys {', '.join(map(repr, group))}",
                "fix": f"'params' for {meant!r}" if meant else "'params': the parameters of the group",
            }
        else:
            inside = group["params"]
            if isinstance(inside, (nn.Module, Mapping, str)):
                yield {"where": f"group {number}", "got": _shown(inside), "fix": _cure(inside)}
            elif isinstance(inside, Sequence):
                yield from _in_list(inside, f"group {number}")


def _in_list(params: Sequence[Any], place: str) -> Iterator[dict[str, str | None]]:
    for number, one in enumerate(params):
        named = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)
        if not isinstance(one, Tensor) and not named:
            yield {"where": f"item {number} of {place}", "got": _shown(one), "fix": _cure(one)}


def _twice(groups: Sequence[Mapping[str, Any]], module: nn.Module) -> Iterator[dict[str, str | None]]:
    """Parameters that are in two groups; those that a generator gave are gone by now."""
    first: dict[int, int] = {}
    names = {id(p): name for name, p in module.named_parameters()}
    for number, group in enumerate(groups):
        inside = group["params"]
        inside = [inside] if isinstance(inside, Tensor) else inside if isinstance(inside, Sequence) else []
        again = [one for one in map(id, inside) if first.setdefault(one, number) != number]
        if again:
            yield {
                "where": f"groups {first[again[0]]} and {number}",
                "got": f"in both: {listed([names.get(one, 'a tensor of no name') for one in again])}",
                "fix": "put each parameter into one group",
            }


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__


def _cure(value: Any) -> str | None:
    if isinstance(value, nn.Module):
        return "its parameters: layer.parameters()"
    if isinstance(value, str):
        return "parameters and no names: [p for n, p in self.named_parameters() if n.startswith(...)]"
    if isinstance(value, Mapping):
        return "a list of groups: [{...}]"
    if isinstance(value, Tensor):
        return "a list: [tensor]"
    return "leave it out" if value is None else None
