"""Skips or rolls back steps whose loss jumps far above the losses before."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import ABOVE_ZERO, COUNT, NAME_OR_NONE, SOME_STEPS, check_arguments, one_of
from ...errors import PacelineError
from ..base import Callback

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..trainer_view import TrainerView


class LossSpikes(Callback):
    """Watches the loss of each step, over all micro-batches and ranks, before the weights change.

    A spike is a loss above the mean of the last ``window`` losses by more than ``threshold`` of their
    standard deviations; spikes are not among them. The step's update is skipped, and a line reports it.
    Under ``action="roll_back"`` weights, optimizer states and averages of weights are also taken back from
    the newest checkpoint, while steps, schedules and data continue: the batches since then are skipped, as
    in PaLM (Chowdhery et al. 2022, section 5.1, https://arxiv.org/abs/2204.02311).

    One that a stop has written besides is not taken, so that a resumed run does the same, as long as
    ``Checkpoint(keep=...)`` keeps the one before.

    Each step waits for its loss, and costs a reduction of one number on several ranks.

    Args:
        threshold: Standard deviations.
        window: Losses that must be known before one is judged.
        action: ``"skip"`` or ``"roll_back"``.
        most: Spikes in a run; one more is an error.
        name: The key of its state, where two of this class are given.

    Attributes:
        count: Spikes so far.

    Raises:
        PacelineError: for arguments that are not right, under manual optimization, and for too many spikes.

    Example:
        >>> spikes = LossSpikes(threshold=8.0, action="roll_back")
        >>> trainer = Trainer(max_epochs=1, callbacks=[spikes, Checkpoint("500st")], loggers=False)
        >>> run = trainer.fit(Net(), train_loader)
    """

    def __init__(
        self,
        threshold: float = 6.0,
        window: int = 100,
        *,
        action: str = "skip",
        most: int = 10,
        name: str | None = None,
    ) -> None:
        check_arguments(
            "LossSpikes",
            threshold=(threshold, ABOVE_ZERO),
            window=(window, SOME_STEPS),
            action=(action, one_of("skip", "roll_back")),
            most=(most, COUNT),
            name=(name, NAME_OR_NONE),
        )
        self.threshold, self.window, self.action, self.most = threshold, window, action, most
        self.name = name
        self._start()

    def _start(self) -> None:
        self.count, self._rolls_back = 0, False
        self._target: str | None = None
        self._ends = False
        self._losses: deque[float] = deque(maxlen=self.window)

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage != "fit":
            return
        self._start()  # a resumed run gets its state back after this
        if not trainer.module.automatic_optimization:
            raise PacelineError(
                "LossSpikes skips updates of automatic optimization, and this module updates by itself",
                code="manual-optimization",
                fix="compare losses in training_step, and do not step there",
            )

    def on_before_optimizer_step(self, trainer: TrainerView, optimizer: Optimizer) -> None:
        loss = trainer.loop.step_loss()
        if not math.isfinite(loss):  # the argument nonfinite decides about those
            return
        if len(self._losses) == self.window:
            mean = fmean(self._losses)
            spread = max(pstdev(self._losses), 1e-6 * abs(mean))  # losses may be all the same
            if loss > mean + self.threshold * spread:
                self._skip(trainer, loss, mean, (loss - mean) / spread if spread else math.inf)
                return
        self._losses.append(loss)

    def _skip(self, trainer: TrainerView, loss: float, mean: float, deviations: float) -> None:
        what = (
            f"step {trainer.global_step + 1}: the loss {loss:.4g} is {deviations:.3g} standard deviations "
        )
        what += f"above the mean of the last {self.window}, {mean:.4g}"
        if self.count == self.most:
            raise PacelineError(
                f"a spike of the loss after {self.most} others, the most allowed",
                code="loss-spikes",
                where=what,
                fix="a lower learning rate, clip_grad_norm=1.0, or LossSpikes(most=...)",
            )
        self.count += 1
        self._rolls_back = self.action == "roll_back"
        trainer.loop.skip_update()
        trainer.log_line(f"{what}; the update is skipped (spike {self.count} of at most {self.most})")

    def on_step_boundary(self, trainer: TrainerView) -> None:
        newest = trainer.checkpoints.newest
        if newest is not None:
            self._target = str(newest)
        if not self._rolls_back:
            return
        self._rolls_back = False
        trainer.checkpoints.wait()  # the newest one, whether it is written by now or not
        path = trainer.ranks.on_rank_zero(lambda: self._find(trainer))
        if path is None:
            trainer.log_line("there is no checkpoint to roll back to yet: the weights stay as they are")
            return
        trainer.checkpoints.roll_back(path)
        trainer.log_line(f"rolled back to the weights of {path.name}; steps and data continue")

    def on_save_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        if not self._ends and trainer.checkpoints.newest is not None:
            self._target = str(trainer.checkpoints.newest)  # the one that is being written

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._ends = True

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        self._ends = True

    def _find(self, trainer: TrainerView) -> Path | None:
        """The newest checkpoint that was not written by a stop: an uninterrupted run has no other."""
        latest: Path | None = trainer.run.latest
        if self._target is None or trainer.folder is None:
            return latest
        target = Path(self._target)
        here = trainer.folder / "checkpoints" / target.name  # where the folder of the run was moved
        return next((path for path in (target, here) if path.exists()), latest)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "losses": list(self._losses), "target": self._target}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._target = int(state["count"]), state.get("target")
        self._losses = deque(map(float, state["losses"]), maxlen=self.window)
