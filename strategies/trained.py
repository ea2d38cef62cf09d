"""What is trained: which parameters a module has, which need a gradient, and what optimizers hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from ..errors import PacelineError, listed
from .tensors.sharding import is_sharded


@dataclass(frozen=True)
class TrainedChange:
    """What is trained otherwise than before, by the names of the parameters.

    Args:
        unfrozen: They need a gradient, and did not.
        frozen: The other way round.
        placed: Names with another parameter than before: added, replaced, or tied to another one.
        removed: Names that are gone.
        grouped: They are in parameter groups that were added to an optimizer.

    Example:
        >>> print(TrainedChange(unfrozen=["backbone.weight"], grouped=["backbone.weight"]))
        unfrozen: backbone.weight; in a new parameter group: backbone.weight
    """

    unfrozen: Sequence[str] = ()
    frozen: Sequence[str] = ()
    placed: Sequence[str] = ()
    removed: Sequence[str] = ()
    grouped: Sequence[str] = ()

    def __str__(self) -> str:
        named = {
            "unfrozen": self.unfrozen,
            "frozen": self.frozen,
            "added, replaced or tied": self.placed,
            "removed": self.removed,
            "in a new parameter group": self.grouped,
        }
        return "; ".join(f"{what}: {listed(names)}" for what, names in named.items() if names)


class TrainedParameters:
    """Notices what is trained otherwise than before.

    A look costs some 30 ns for each parameter: the module is gone through only after a parameter or a
    submodule was assigned to some module.

    Args:
        module: The user's.
        optimizers: Of the run.
        tell: The strategy's ``trainable_changed``.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        tell: Callable[[nn.Module, TrainedChange], None],
    ) -> None:
        self._module, self._optimizers, self._tell = module, optimizers, tell
        hooks = (register_module_parameter_registration_hook, register_module_module_registration_hook)
        self._hooks = [hook(self._note_assignment) for hook in hooks]
        self._assigned = False
        self._note(self._read())

    def close(self) -> None:
        """Notice nothing more."""
        for hook in self._hooks:
            hook.remove()

    def _note_assignment(self, *_: object) -> None:
        self._assigned = True

    def _read(self) -> dict[str, nn.Parameter]:
        return dict(self._module.named_parameters(remove_duplicate=False))

    def _note(self, named: dict[str, nn.Parameter]) -> None:
        self._named, self._parameters = named, list(named.values())
        self._flags = [p.requires_grad for p in self._parameters]
        self._groups = [len(optimizer.param_groups) for optimizer in self._optimizers]

    def follow(self, *_: object) -> None:
        """Tell the strategy what has changed since the last look, where anything has; between two steps.

        Raises:
            PacelineError: where it cannot be followed.
        """
        change = self.change()
        if change is not None:
            self._tell(self._module, change)

    def check_within_step(self, where: Callable[[], str]) -> None:
        """After a forward: the strategy has prepared for what was trained when the step began.

        Args:
            where: Gives the place, for the error.

        Raises:
            PacelineError: where anything has changed.
        """
        change = self.change(within_step=True)
        if change is not None:
            raise PacelineError(
                "what is trained was changed within training_step",
                code="trained-parameters-fixed",
                where=where(),
                got=str(change),
                fix="change it between two steps: in on_step_start, on_train_epoch_start or a callback",
            )

    def change(self, within_step: bool = False) -> TrainedChange | None:
        """What has changed since the last look; None: nothing.

        Args:
            within_step: A strategy may hold gathered parameters in the places of sharded ones.
        """
        if (
            not self._assigned
            and self._flags == [p.requires_grad for p in self._parameters]
            and self._groups == [len(optimizer.param_groups) for optimizer in self._optimizers]
        ):
            return None
        before, flags, groups = self._named, dict(zip(self._named, self._flags, strict=True)), self._groups
        self._assigned = False
        now = self._read()
        if within_step:
            sharded = {name: p for name, p in before.items() if is_sharded(p)}
            now = {name: sharded.get(name, p) for name, p in now.items()}
        self._note(now)
        added = [
            id(parameter)
            for optimizer, count in zip(self._optimizers, groups, strict=True)
            for group in optimizer.param_groups[count:]
            for parameter in group["params"]
        ]
        same = {name: p for name, p in self._named.items() if before.get(name) is p}
        found = TrainedChange(
            unfrozen=[n for n, p in same.items() if p.requires_grad and not flags[n]],
            frozen=[n for n, p in same.items() if flags[n] and not p.requires_grad],
            placed=[name for name in self._named if name not in same],
            removed=[name for name in before if name not in self._named],
            grouped=[name for name, p in self._named.items() if id(p) in added],
        )
        return found if any(vars(found).values()) else None
