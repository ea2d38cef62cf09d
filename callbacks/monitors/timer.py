"""Where the time of a run goes: training, waiting for data, validation, saving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

from ...common.argument_checks import check_arguments, check_names, one_of
from ..progress import clock_text
from .phase_clock import PHASES, PhaseCallback, PhaseClock

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_SHOWN = ("train", "data", "validation", "save")


class Timer(PhaseCallback):
    """Adds up the time of a run by phase, over all sessions of a resumed run.

    At the end of each epoch ``time/train_seconds``, ``time/data_seconds``, ``time/validation_seconds`` and
    ``time/save_seconds`` are published, since the beginning of the run. The fit ends with a line of them:
    ``time: 3:12 training (4 % waiting for data), 20.1 s validation, 3.4 s saving``. They are times of rank
    0's host. The save at the end of the fit is in none of them, nor is the thread of a background save.

    Raises:
        PacelineError: for any argument. The limit on a run's time is ``Trainer(max_time=...)``.

    Example:
        >>> timer = Timer()
        >>> trainer = Trainer(max_epochs=1, callbacks=timer, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)
        >>> timer.seconds("train") > timer.seconds("data") > 0
        True
    """

    def __init__(self, **unknown: Never) -> None:
        check_names(Timer, unknown)
        super().__init__()

    def seconds(self, phase: str) -> float:
        """Seconds spent in a phase, up to the last change of phases.

        Args:
            phase: ``"train"`` (waiting for data included), ``"data"``, ``"validation"`` or ``"save"``.

        Raises:
            PacelineError: for another one.
        """
        check_arguments("Timer.seconds", phase=(phase, one_of(*_SHOWN)))
        spent = self._clock.seconds
        return spent["step"] + spent["data"] if phase == "train" else spent[phase]

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":  # a resumed run gets its state back after this
            self._clock = PhaseClock()

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        self._clock.enter("step")
        mine = {f"time/{phase}_seconds": self.seconds(phase) for phase in _SHOWN}
        trainer.publish(trainer.ranks.broadcast(mine))

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._clock.stop()
        if trainer.is_global_zero:
            trainer.log_line(self._line())

    def _line(self) -> str:
        train, data, *others = (self.seconds(phase) for phase in _SHOWN)
        line = f"time: {_shown(train)} training ({data / max(train, 1e-9):.0%} waiting for data)"
        named = zip(("validation", "saving"), others, strict=True)
        return ", ".join([line.replace("%", " %"), *(f"{_shown(s)} {name}" for name, s in named if s)])

    def state_dict(self) -> dict[str, Any]:
        return dict(self._clock.seconds)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._clock.seconds = {phase: float(state[phase]) for phase in PHASES}


def _shown(seconds: float) -> str:
    return clock_text(seconds) if seconds >= 60 else f"{seconds:.1f} s"
