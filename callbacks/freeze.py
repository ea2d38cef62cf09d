"""Freeze: parameters that are not trained until a point of the run, by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn

from ..common.argument_checks import DURATION_OR_NONE, NAME_OR_NONE, TEXT, TEXTS, check_arguments
from ..durations import Duration
from ..errors import PacelineError, nearest
from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class Freeze(Callback):
    """Freezes the parameters whose names match, and trains them from a point of the run on.

    Frozen ones get no gradient and stay as they are: no weight decay, no momentum. They may be in the
    optimizer from the start, and have to be where they are unfrozen; a parameter group gives them another
    learning rate. After the fit each parameter is trainable or not as it was before.

    ZeRO fixes at the start what is trained, and each group of the optimizer has to train something: there
    ``until`` is refused, and so is a group that is frozen as a whole.

    Args:
        patterns: One or several, as in a shell: ``"backbone.*"``, ``"*.bias"``.
        until: A duration, after which they are trained; None never.
        name: The key of its state, where two of this class are given.

    Raises:
        PacelineError: for a pattern that no parameter matches, and for parameters in no optimizer.

    Example:
        >>> trainer = Trainer(max_epochs=2, callbacks=Freeze("*.weight", until="1ep"), run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
    """

    def __init__(
        self, patterns: str | Sequence[str], until: Any = None, *, name: str | None = None
    ) -> None:
        check_arguments(
            "Freeze",
            patterns=(patterns, TEXT if isinstance(patterns, str) else TEXTS),
            until=(until, DURATION_OR_NONE),
            name=(name, NAME_OR_NONE),
        )
        self.patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        self.until = None if until is None else Duration.parse(until)
        self.name = name
        self._names: set[str] = set()
        self._unfrozen = False

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage != "fit":
            return
        if self.until is not None:
            trainer.strategy.check_unfreezing()
        parameters: dict[str, nn.Parameter] = dict(trainer.module.named_parameters())
        matching = {
            pattern: [n for n in parameters if fnmatchcase(n, pattern)] for pattern in self.patterns
        }
        for pattern, names in matching.items():
            if not names:
                parts = [f"{name}.*" for name, _ in trainer.module.named_modules() if name]
                raise PacelineError(
                    f"Freeze: no parameter's name matches {pattern!r}",
                    code="part-not-found",
                    allowed=", ".join([*parameters][:6]) + (" ..." if len(parameters) > 6 else ""),
                    meant=nearest(pattern, [*parameters, *parts]),
                )
        found = {name for names in matching.values() for name in names}
        for other in trainer.callbacks:
            if isinstance(other, Freeze) and other is not self and (both := found & other._names):
                raise PacelineError(
                    "two Freeze callbacks hold the same parameters",
                    code="conflicting-arguments",
                    got=", ".join(sorted(both)[:6]),
                    fix="patterns that do not overlap",
                )
        self._names = {name for name in found if parameters[name].requires_grad}
        self._unfrozen = False
        for parameter in self._matching(trainer).values():
            parameter.requires_grad_(False)

    def on_fit_start(self, trainer: TrainerView) -> None:
        for parameter in self._matching(trainer).values():
            parameter.requires_grad_(False)  # whatever a checkpoint says: ``until`` decides
        if self.until is None or not self._names:
            return
        held = {id(p) for o in trainer.optimizers for group in o.param_groups for p in group["params"]}
        missing = [name for name, parameter in self._matching(trainer).items() if id(parameter) not in held]
        if missing:
            raise PacelineError(
                f"Freeze trains {len(missing)} parameters after {self.until} that are in no optimizer",
                code="parameters-without-optimizer",
                got=", ".join(missing[:6]),
                fix="give configure_optimizers' optimizer self.parameters(): frozen ones are skipped",
            )
        if self._unfrozen or self._is_over(trainer):
            self._unfreeze(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if not self._unfrozen and self._is_over(trainer):
            self._unfreeze(trainer)
            trainer.log_line(
                f"{len(self._names)} parameters are trained from step {trainer.global_step + 1} on: "
                f"{', '.join(self.patterns)}"
            )

    def _is_over(self, trainer: TrainerView) -> bool:
        return self.until is not None and trainer.counters.elapsed(self.until.unit) >= self.until.amount

    def _matching(self, trainer: TrainerView) -> dict[str, nn.Parameter]:
        """The frozen ones; a strategy may have put others in their places."""
        return {n: p for n, p in trainer.module.named_parameters() if n in self._names}

    def _unfreeze(self, trainer: TrainerView) -> None:
        self._unfrozen = True
        for parameter in self._matching(trainer).values():
            parameter.requires_grad_(True)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":
            for parameter in self._matching(trainer).values():
                parameter.requires_grad_(True)
            self._names = set()

    def state_dict(self) -> dict[str, Any]:
        return {"unfrozen": self._unfrozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._unfrozen = bool(state["unfrozen"])
