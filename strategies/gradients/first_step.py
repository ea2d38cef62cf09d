"""What step 1 shows of the gradients: whether DDP's reducer can average them while backward runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from ...errors import listed


@contextmanager
def arrivals(parameters: dict[str, Tensor]) -> Iterator[list[str]]:
    """The names of parameters in the order in which a backward inside adds to their gradients."""
    came: list[str] = []
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, n=n: came.append(n))  # type: ignore[misc]
        for n, p in parameters.items()
    ]
    try:
        yield came
    finally:
        for hook in hooks:
            hook.remove()


def is_recomputed(loss: Tensor) -> bool:
    """Whether a reentrant activation checkpoint is in the graph of a loss."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False


def in_parts(came: Iterable[str]) -> list[str]:
    """Those that came more than once: of these the reducer would average the first part alone."""
    return [name for name, count in Counter(came).items() if count > 1]


@dataclass
class FirstStep:
    """What the backwards of step 1 have shown; the same on all ranks, but for ``came``.

    Attributes:
        came: The names in the order in which gradients came in the first backward.
        missed: Which had none after it.
        in_parts: Which got a gradient more than once within a backward.
        unused: Which had none after the last backward.
    """

    came: list[str]
    missed: list[str]
    in_parts: list[str]
    unused: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.unused = self.missed

    def add(self, later: FirstStep) -> FirstStep:
        """Take what another backward of the step has shown."""
        self.in_parts = [*dict.fromkeys([*self.in_parts, *later.in_parts])]
        self.unused = later.unused
        return self

    @property
    def suits_the_reducer(self) -> bool:
        """Whether each parameter gets its gradient in the first backward, in one piece."""
        return not self.missed and not self.in_parts

    def line(self) -> str:
        """Why it does not, for the log."""
        slower = "so gradients are all-reduced after backward, which is slower"
        if self.unused:
            return (
                f"{counted(self.unused)} no gradient in step 1, {slower}: {listed(self.unused)}; freeze "
                "them with requires_grad_(False)"
            )
        if self.in_parts:
            return (
                f"{counted(self.in_parts)} a gradient more than once within a backward, as in a reentrant "
                f"checkpoint, {slower}: {listed(self.in_parts)}; checkpoint(..., use_reentrant=False)"
            )
        return (
            f"{counted(self.missed)} no gradient in the first backward of step 1, {slower}: "
            f"{listed(self.missed)}"
        )


def counted(names: list[str]) -> str:
    """``2 parameters get``."""
    return f"{len(names)} parameter{'s get' if len(names) > 1 else ' gets'}"
