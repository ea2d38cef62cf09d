"""Where a number that is not finite came from: the failed step is run once more, and watched."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import PacelineError, is_users_frame
from ..rng import untouched
from ..runtime.compilation import uncompiled
from ..runtime.discard_effects import nothing_kept
from ..utils.nested import tensors_of

if TYPE_CHECKING:
    from ..loops.training_loop import TrainLoop


_AVERAGED = ", which may be averaged already"


@dataclass
class Origin:
    """What was found on the rank that shows it first.

    Args:
        told: Where the first number that is not finite is.
        rank: None where no rank shows one.
        samples: The dataset indices it comes from, as far as can be told.
    """

    told: str
    rank: int | None = None
    samples: list[Any] = field(default_factory=list)


def find_origin(loop: TrainLoop, batches: list[Any], sizes: list[int], samples: list[list[Any]]) -> Origin:
    """Run the step under way again without an update. To be called on all ranks."""
    watch = _Watch(loop.trainer.module)
    try:
        with suppress(PacelineError):  # a graph that was promised to be static averages always
            loop.strategy.synchronise_gradients(False)
        for index, batch in enumerate(batches):
            watch.begin(batch, sizes[index], samples[index], loop.trainer.rank_of(index))
            known, arguments = watch.found is not None, loop.arguments(batch, index - len(batches))
            with uncompiled(loop.trainer.compilation), watch.watching():
                _take(loop, watch, arguments)
            watch.look_at_gradients()
            if watch.found is not None and not known and loop.world == 1:
                eager = uncompiled(loop.trainer.compilation)
                with eager, forward_line(check_nan=True) as lines, suppress(RuntimeError):
                    _take(loop, None, arguments)
                told = "; ".join([watch.found[0], *(f"computed at {line}" for line in lines)])
                watch.found = (told, *watch.found[1:])
        found = loop.strategy.gather(watch.found)
    except Exception as error:  # the others see their connection closed
        return Origin(f"when the step was run again: {type(error).__name__}: {error}"[:200])
    shown = {rank: one for rank, one in enumerate(found) if one is not None}
    own = [one for one in shown.values() if _AVERAGED not in one[0]]
    for told, its_samples, rank in own:
        return Origin(told, rank, its_samples)
    for told, its_samples, rank in shown.values():
        return Origin(told, rank, its_samples) if len(shown) == 1 else Origin(told)
    return Origin("it did not come again when the step was run once more: what is drawn was drawn anew")


def _take(loop: TrainLoop, watch: _Watch | None, arguments: tuple[Any, ...]) -> None:
    """A micro-batch's forward and backward."""
    with nothing_kept(loop.trainer, loop.store), untouched(loop.strategy.device):
        output = loop.training_step(*arguments)
        loss = output["loss"] if isinstance(output, Mapping) else output
        if watch is not None and not bool(torch.isfinite(loss)):
            watch.note(f"{loss.item()} first in training_step itself, behind the model's parts")
        loop.strategy.backward(loss)


@contextmanager
def forward_line(check_nan: bool) -> Iterator[list[str]]:
    """Inside, autograd keeps the line of each operation; the one whose backward fails is in the list then.

    Args:
        check_nan: A NaN out of a backward is a failure too.
    """
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly(check_nan=check_nan):
        warnings.simplefilter("always")
        try:
            yield lines
        finally:
            lines += filter(None, (_users_line(str(warning.message)) for warning in caught))


def _users_line(text: str) -> str | None:
    if "Traceback of forward call" not in text:
        return None
    found = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', text)
    users = [f"{file}:{line}: {code.strip()}" for file, line, code in found if is_users_frame(file)]
    return users[-1] if users else None


class _Watch:
    """Looks at what each part of a module gives, and at the gradients that come back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.found: tuple[str, list[Any], int] | None = None
        self._size, self._samples, self._rank = 0, [], 0  # type: tuple[int, list[Any], int]

    def begin(self, batch: Any, size: int, samples: list[Any], rank: int) -> None:
        """The next micro-batch, of this rank."""
        self._size, self._samples, self._rank = size, samples, rank
        for tensor in tensors_of(batch):
            self._look("the batch itself", tensor)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on all parts."""
        parts = [(path, part) for path, part in self.module.named_modules() if path]
        handles = [part.register_forward_hook(self._forward_hook(path)) for path, part in parts]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _forward_hook(self, path: str) -> Any:
        def hook(part: nn.Module, inputs: Any, output: Any) -> None:
            where = f"the output of {path} ({type(part).__name__})"
            for tensor in tensors_of(output):
                self._look(where, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad: self._look(f"the gradient of {where}", grad))

        return hook

    def look_at_gradients(self) -> None:
        """Behind a backward: those of the parameters that this rank has whole."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not hasattr(parameter.grad, "to_local"):
                self._look(f"the gradient of {name}{_AVERAGED}", parameter.grad, rows=False)

    def _look(self, where: str, tensor: Tensor, rows: bool = True) -> None:
        if self.found is not None or not tensor.is_floating_point():
            return
        finite = torch.isfinite(tensor.detach())
        if bool(finite.all()):
            return
        value = "nan" if bool(torch.isnan(tensor.detach()).any()) else "inf"
        self.note(f"{value} first in {where}", finite if rows else None)

    def note(self, told: str, finite: Tensor | None = None) -> None:
        """The first one counts.

        Args:
            finite: Which numbers are; its first dimension may be that of the samples.
        """
        if self.found is not None:
            return
        samples = self._samples
        if finite is not None and finite.ndim and len(finite) == self._size == len(samples):
            bad = ~finite.reshape(len(samples), -1).all(1)
            samples = [sample for sample, is_bad in zip(samples, bad.tolist(), strict=True) if is_bad]
        self.found = (told, samples, self._rank)
