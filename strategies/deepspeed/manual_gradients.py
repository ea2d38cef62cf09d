"""What ``.grad`` is under manual optimization between a backward and an update of the engine's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PacelineError
from ..distributed import Distributed
from ..own_gradients import OwnGradients


class _Elsewhere(Tensor):
    """Stands where a gradient would be, of its shape and without memory: whoever reads it gets an error."""

    place: tuple[str, str]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse any use.

        Raises:
            PacelineError: naming the parameter.
        """
        strategy, name = next(_found([*args, *(kwargs or {}).values()])).place
        raise PacelineError(
            f"strategy {strategy!r} keeps gradients in its own shards: {name}.grad cannot be read or "
            "changed before the update",
            code="sharded-access",
            fix="Trainer(clip_grad_norm=...) clips, in optimizer.step(); "
            "trainer.strategy.weights.full_gradients(self) reads; strategy='deepspeed_stage_1', 'ddp' and "
            "'fsdp' have gradients in .grad",
        )


def _found(values: Iterable[Any]) -> Iterator[_Elsewhere]:
    for value in values:
        if type(value) is _Elsewhere:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _found(value)


class ManualGradients:
    """The gradients that a module's own backwards compute through the engine; nothing where it has none.

    Stages 0 and 1 leave them in ``.grad``, where they are averaged after each backward. From stage 2 on
    they are taken from there: what replaces them raises an error when it is read.

    Args:
        strategy: Averages.
        stage: Of ZeRO.
        module: The user's.

    Attributes:
        own: Those that are not averaged yet, at stages 0 and 1.
    """

    def __init__(self, strategy: Distributed, stage: int, module: nn.Module) -> None:
        manual = not getattr(module, "automatic_optimization", True)
        trained = [(name, p) for name, p in module.named_parameters() if manual and p.requires_grad]
        self._name, self._hides, self._trained = strategy.name, stage > 1 and manual, trained
        self._went_backward = False
        held = [] if self._hides else [[p for _, p in trained]]
        self.own = OwnGradients(strategy, lambda: held)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Inside, the engine goes backward. To be called on all ranks."""
        self.show()
        yield
        self._went_backward = True
        if self._hides:
            self._hide()
        elif self._trained:
            self.own.after_backward()

    def reduce(self) -> None:
        """Average what is in ``.grad``, where backward did not. To be called on all ranks."""
        if self._trained and not self._hides and not self.own.averages:
            self.own.before_update(0)

    def before_update(self) -> None:
        """The engine is about to update.

        Raises:
            PacelineError: where no gradient came through the engine, and it needs that.
        """
        self.show()
        if self._hides and not self._went_backward:
            raise PacelineError(
                f"strategy {self._name!r} has no gradients to update with",
                code="backward-bypassed",
                fix="self.manual_backward(loss) in the place of loss.backward(), before optimizer.step()",
            )
        self._went_backward = False

    def _hide(self) -> None:
        for name, parameter in self._trained:
            if parameter.grad is None:
                stand_in = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
                stand_in = stand_in.expand(parameter.shape).as_subclass(_Elsewhere)
                vars(stand_in)["place"] = (self._name, name)
                parameter.grad = stand_in

    def show(self) -> None:
        """Take away what stands where gradients would be."""
        for _, parameter in self._trained:
            if type(parameter.grad) is _Elsewhere:
                parameter.grad = None
