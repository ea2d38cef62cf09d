"""The small module that strategies wrap, so that ``self`` in a step stays the user's own object."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ..errors import PacelineError, listed
from .torch_internals import writes_to


class Dispatch(nn.Module):
    """Its forward runs a named step of the user's module, under the precision's context.

    Args:
        context: Makes what the step runs in; None where there is nothing to enter.

    Attributes:
        went_backward: For the strategy to set: whether it has gone backward since the last forward.
        lasting: For the strategy to set: the parameters in which a write of ``training_step`` lasts;
            in others, gathered for it, it is refused, as far as its first call shows it. None: in all.
    """

    went_backward = False
    lasting: Collection[Tensor] | None = None

    def __init__(
        self, module: nn.Module, context: Callable[[], AbstractContextManager[Any]] | None
    ) -> None:
        super().__init__()
        self.module = module
        self.context = context

    def forward(self, name: str, *args: Any) -> Any:
        self.went_backward = False
        with nullcontext() if self.context is None else self.context():
            if self.lasting is None or name != "training_step":
                return getattr(self.module, name)(*args)
            gathered = {n: p for n, p in self.module.named_parameters() if p not in self.lasting}
            before, self.lasting = writes_to(gathered.values()), None
            found = getattr(self.module, name)(*args)
            writes = zip(gathered, before, writes_to(gathered.values()), strict=True)
            written = [n for n, earlier, now in writes if earlier != now]
            if written:
                raise PacelineError(
                    "training_step writes to parameters that are gathered for it: what it writes is lost",
                    code="sharded-access",
                    got=listed(written),
                    fix="write in on_step_start or on_step_end",
                )
            return found
