"""Steps that update nothing because ``training_step`` returned None: the same ones on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...errors import PacelineError
from ...strategies import Strategy
from ..faults.nonfinite import Guard
from ..state import TrainState
from ..utils.functions import returns_value


class StepsWithoutLoss:
    """Counts them, and has all ranks skip a step for which one of them has no loss.

    A rank without a loss must take part in the reduction of gradients. It goes backward from one whose
    gradients are NaN, and the guard finds those on every rank: no other step costs more.

    Args:
        training_step: The module's own.
    """

    def __init__(
        self,
        module: Any,
        strategy: Strategy,
        guard: Guard | None,
        state: TrainState,
        log_line: Callable[[str], None],
    ) -> None:
        self._module, self._strategy, self._guard, self._state = module, strategy, guard, state
        self._log_line, self._reported = log_line, False
        self.here = False

    @cached_property
    def possible(self) -> bool:
        """False where ``training_step`` never returns a value: its author forgot to."""
        return returns_value(self._module.training_step)

    def stand_in(self) -> Tensor | None:
        """Skip the step under way. What to go backward from; None where nobody waits for this rank.

        Raises:
            PacelineError: where the other ranks would not notice.
        """
        self.here = True
        strategy, guard = self._strategy, self._guard
        if strategy.environment.world_size == 1:
            return None
        loss = strategy.stand_in_loss(self._module)
        # Whether losses have weights, the first one shows.
        none_yet = self._state.global_step == self._state.steps_without_loss
        if loss is None or guard is None or guard.late or strategy.precision.scales or none_yet:
            raise self._refusal(loss)
        guard.expect_nan()
        return loss

    def _refusal(self, loss: Tensor | None) -> PacelineError:
        strategy, guard = self._strategy, self._guard
        if strategy.settings.sync_batchnorm:
            place = "with sync_batchnorm=True"
        elif loss is None:
            place = f"with strategy={strategy.name!r}"
        elif guard is None:
            place = "with nonfinite='ignore'"
        elif strategy.precision.scales:
            place = f"with precision={strategy.precision.name!r}"
        elif guard.late:
            place = "with a fused optimizer and nonfinite='raise'"
        else:
            place = "in the first step of a run"
        return PacelineError(
            f"training_step returned None, and on several ranks {place} the others cannot skip the step",
            code="loss-not-usable",
            where=f"{self._state.step_label}, rank {strategy.environment.rank}",
            fix='run the model on the batch and return loss * float("nan") in its place, with '
            'Trainer(nonfinite="skip:100")',
        )

    def end_step(self, optimizer: Optimizer) -> None:
        """The step has ended without an update. To be called on all ranks."""
        self.here = False
        if self._guard is not None:
            self._guard.forget()
        optimizer.zero_grad()
        self._state.steps_without_loss += 1
        if not self._reported:
            self._reported = True
            self._log_line(
                f"training_step returned None at {self._state.step_label}: such steps update nothing, and "
                "trainer.counters.skipped_steps counts them"
            )

    def end_epoch(self) -> None:
        """An epoch is over.

        Raises:
            PacelineError: where no step so far had a loss.
        """
        steps = self._state.steps_without_loss
        if 0 < steps == self._state.global_step:
            raise PacelineError(
                f"training_step returned None in each of the {steps} steps so far, and nothing was trained",
                code="loss-not-usable",
                where=f"epoch {self._state.epoch + 1}",
                fix="return loss, at least for some batches",
            )
