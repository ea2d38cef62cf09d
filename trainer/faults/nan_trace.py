"""Where a number that is not finite came from: the failed step is run once more, and watched."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PacelineError, is_users_frame
from ...strategies import Strategy
from ...strategies.tensors.sharding import is_sharded
from ..rng import untouched
from ..utils.nested import tensors_of

_AVERAGED = ", which may be averaged already"


@dataclass
class Origin:
    """What was found on the rank that shows it first.

    Args:
        description: Where the first number that is not finite is.
        rank: None where no rank shows one.
        samples: The dataset indices it comes from, as far as is known.
    """

    description: str
    rank: int | None = None
    samples: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class FailedStep:
    """The current step, to be run again without an update.

    Args:
        forward: Runs ``training_step`` on the micro-batch of this number, and returns its output.
        nothing_kept: Inside, nothing that the step logs, counts or draws is kept.
        uncompiled: Inside, modules run as they are written: compiled code does not see later hooks.
        sizes: The number of samples in each micro-batch.
        samples: The dataset indices of each micro-batch.
    """

    module: nn.Module
    strategy: Strategy
    batches: list[Any]
    sizes: list[int]
    samples: list[list[Any]]
    forward: Callable[[int], Any]
    nothing_kept: Callable[[], AbstractContextManager[Any]]
    uncompiled: Callable[[], AbstractContextManager[Any]]

    def take(self, index: int, watch: _Watch | None) -> None:
        """Forward and backward of a micro-batch."""
        with self.nothing_kept(), untouched(self.strategy.device):
            output = self.forward(index)
            loss = output["loss"] if isinstance(output, Mapping) else output
            if watch is not None and not bool(torch.isfinite(loss)):
                watch.note(f"{loss.item()} first in training_step itself, after the model's parts")
            self.strategy.backward(loss)


def find_origin(step: FailedStep) -> Origin:
    """Run the current step again without an update. To be called on all ranks."""
    strategy, watch = step.strategy, _Watch(step.module)
    try:
        with suppress(PacelineError):  # a graph that was promised to be static averages always
            strategy.synchronise_gradients(False)
        for index, batch in enumerate(step.batches):
            watch.begin(batch, step.sizes[index], step.samples[index], strategy.collectives.rank_of(index))
            known = watch.found is not None
            with step.uncompiled(), watch.watching():
                step.take(index, watch)
            watch.look_at_gradients()
            if watch.found is not None and not known and strategy.environment.world_size == 1:
                with step.uncompiled(), forward_line(check_nan=True) as lines, suppress(RuntimeError):
                    step.take(index, None)
                description = "; ".join([watch.found[0], *(f"computed at {line}" for line in lines)])
                watch.found = (description, *watch.found[1:])
        found = strategy.collectives.all_gather(watch.found)
    except Exception as error:  # the others see their connection closed
        return Origin(f"repeating the step failed: {type(error).__name__}: {error}"[:200])
    shown = {rank: one for rank, one in enumerate(found) if one is not None}
    own = [one for one in shown.values() if _AVERAGED not in one[0]]
    for description, its_samples, rank in own:
        return Origin(description, rank, its_samples)
    for description, its_samples, rank in shown.values():
        return Origin(description, rank, its_samples) if len(shown) == 1 else Origin(description)
    return Origin("it did not appear again when the step was run once more: random draws differ")


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
        """After a backward: those of the parameters that this rank has whole."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not is_sharded(parameter.grad):
                self._look(f"the gradient of {name}{_AVERAGED}", parameter.grad, rows=False)

    def _look(self, where: str, tensor: Tensor, rows: bool = True) -> None:
        if self.found is not None or not tensor.is_floating_point():
            return
        finite = torch.isfinite(tensor.detach())
        if bool(finite.all()):
            return
        value = "nan" if bool(torch.isnan(tensor.detach()).any()) else "inf"
        self.note(f"{value} first in {where}", finite if rows else None)

    def note(self, description: str, finite: Tensor | None = None) -> None:
        """Keep the first place where a number was not finite; later ones are ignored.

        Args:
            description: The place, in words.
            finite: Which numbers are finite, bool; its first dimension may be that of the samples.
        """
        if self.found is not None:
            return
        samples = self._samples
        if finite is not None and finite.ndim and len(finite) == self._size == len(samples):
            bad = ~finite.reshape(len(samples), -1).all(1)
            samples = [sample for sample, is_bad in zip(samples, bad.tolist(), strict=True) if is_bad]
        self.found = (description, samples, self._rank)
