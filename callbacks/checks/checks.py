"""Notices mistakes that raise no error, before the first step and in the first ones of a fit."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import SWITCH_OR_TEXTS, check_arguments
from ...errors import PacelineError, nearest, shown
from ...plugins import load
from ..base import Callback
from .finding import Check, Finding, Moment, first_of
from .observer import Observer
from .table import ON_REQUEST, built_in_checks

if TYPE_CHECKING:
    from ...durations import StepPosition
    from ..trainer_view import TrainerView
    from .seen import Seen

_JUDGED = (3, 10, 50, 250)
"""Steps of a run after which what was seen is judged."""
_VALIDATIONS = 2
"""Validations of a fit that are looked at, besides the sanity pass."""


class Checks(Callback):
    """Warns of mistakes that raise no error: layers in a plain list, a softmax before cross-entropy.

    It is among the default callbacks. It looks at the module, the optimizers and the data before the first
    step, at the first ten steps and two later ones, and at the first validations, and costs nothing after
    that. Rank 0 looks; all ranks have its findings. docs/guides/silent-mistakes.md has all kinds by name.

    Args:
        skip: Names of findings that are meant, as ``"frozen-norms-move"``; True: all, nothing is looked at.
        add: Further checks: what ``check`` makes of a function, or the name of an installed entry point of
            the group ``paceline.checks``.

    Raises:
        PacelineError: for a name that no check has.

    Attributes:
        findings: What was found in the current fit, or in the last one.
        added: The checks of ``add``.
        skipped: The names of ``skip``.

    Example:
        >>> checks = Checks(skip="split-overlap")
        >>> trainer = Trainer(max_epochs=1, callbacks=checks, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> checks.findings
        []
    """

    def __init__(
        self, skip: bool | str | Sequence[str] = False, add: str | Check | Sequence[str | Check] = ()
    ) -> None:
        check_arguments("Checks", skip=(skip, SWITCH_OR_TEXTS))
        added = [add] if isinstance(add, (str, Check)) else add
        if not isinstance(added, (list, tuple)) or not all(isinstance(one, (str, Check)) for one in added):
            raise PacelineError(
                "Checks: add takes checks",
                code="invalid-arguments",
                got=shown(add, 60),
                allowed="what paceline.callbacks.checks.check makes of a function, the name of an entry "
                "point, or several in a list",
            )
        self.added = [load("checks", one, Check) if isinstance(one, str) else one for one in added]
        self.is_off = skip is True
        names = () if isinstance(skip, bool) else (skip,) if isinstance(skip, str) else skip
        self.skipped = frozenset(names)
        if self.skipped:
            self._require_known(self.skipped)
        self.findings: list[Finding] = []
        self._observer: Observer | None = None
        self._validations = 0
        self._restored: list[Finding] = []

    def _require_known(self, names: frozenset[str]) -> None:
        known = {one.name for one in (*built_in_checks(), *self.added)} | ON_REQUEST
        for name in sorted(names - known):
            raise PacelineError(
                f"Checks: no finding is called {name!r}",
                code="invalid-arguments",
                got=name,
                meant=nearest(name, sorted(known)),
                fix="docs/guides/silent-mistakes.md has all names",
            )

    @property
    def seen(self) -> Seen | None:
        """What was seen of the current fit, or of the last one; None where nothing was looked at."""
        return None if self._observer is None else self._observer.seen

    def next_due(self, at: StepPosition) -> float:
        """The next step of which anything is noted."""
        if self._observer is None:
            return math.inf
        return next((step for step in Observer.NOTED if step > at.global_step), math.inf)

    def on_fit_start(self, trainer: TrainerView) -> None:
        self.findings, self._restored = self._restored, []
        self._observer, self._validations = None, 0
        if self.is_off:
            return
        self._observer = Observer(trainer, looks=trainer.is_global_zero)
        self._judge(trainer, "start")

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        if self._observer is not None and self._observer.notes_more:
            self._observer.begin_step(trainer.global_step + 1, batches)

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        if self._observer is None:
            return
        self._observer.end_step(trainer.global_step)
        if trainer.global_step in _JUDGED:
            self._judge(trainer, "steps")

    def on_validation_start(self, trainer: TrainerView) -> None:
        if self._observer is not None and trainer.stage == "fit" and self._validations < _VALIDATIONS:
            self._observer.begin_validation(sanity=not trainer.loop.is_fit_validation)

    def on_validation_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        if self._observer is not None and trainer.stage == "fit":
            self._observer.note_validation_batch(batch, batch_idx)

    def on_validation_end(self, trainer: TrainerView) -> None:
        if self._observer is None or trainer.stage != "fit" or self._validations >= _VALIDATIONS:
            return
        sanity = not trainer.loop.is_fit_validation
        self._validations += not sanity
        self._observer.end_validation(sanity)
        self._judge(trainer, "validation")

    def on_test_step_end(self, trainer: TrainerView, output: Any, batch: Any, batch_idx: int) -> None:
        if self._observer is not None:
            self._observer.note_test_batch(batch, batch_idx)

    def on_test_end(self, trainer: TrainerView) -> None:
        if self._observer is not None:
            self._judge(trainer, "test")

    def on_fit_end(self, trainer: TrainerView) -> None:
        if self._observer is not None:
            self._observer.end_fit()
            self._judge(trainer, "steps")
            self._judge(trainer, "end")

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        if self._observer is not None:
            self._observer.close()

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if self._observer is not None and stage == "fit":
            self._observer.close()

    def state_dict(self) -> dict[str, Any]:
        return {"findings": [asdict(one) for one in self.findings]} if self.findings else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = [Finding(**one) for one in state.get("findings", [])]

    def _judge(self, trainer: TrainerView, moment: Moment) -> None:
        """Look for what is not found yet; rank 0 does, and all know it. On all ranks."""
        found = trainer.ranks.on_rank_zero(lambda: self._look(trainer, moment))
        self.findings += found
        for one in found:
            trainer.log_line(one.lines)

    def _look(self, trainer: TrainerView, moment: Moment) -> list[Finding]:
        observer = self._observer
        if observer is None or not observer.looks:
            return []
        done = {one.name for one in self.findings} | self.skipped
        found: list[Finding] = []
        for one in (*built_in_checks(), *self.added):
            if one.at != moment or one.name in done:
                continue
            try:
                evidence = first_of(one.look(observer.seen))
            except Exception:
                lines = traceback.format_exc()
                trainer.log_line(f"the check {one.name} failed, and is skipped:\n{lines}", console=False)
                evidence = None
            if evidence is not None:
                found.append(Finding(one.name, evidence.seen, evidence.cure, observer.seen.step))
                done.add(one.name)
        return found
