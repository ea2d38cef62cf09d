"""A step of a module outside of a run, and what its losses were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...callbacks.checks.function_watch import LOSSES
from ...callbacks.checks.tensor_facts import memory_of, tensors_in
from ...trainer.rng import seeded
from ...trainer.utils.functions import positional_arguments
from ...trainer.utils.nested import map_tensors


@dataclass
class LossTensors:
    """A call of a loss of torch.

    Attributes:
        function: ``"cross_entropy"``.
        output, target: Its first and second argument.
        options: Its other arguments by name.
        result: What it returned.
    """

    function: str
    output: Tensor
    target: Tensor
    options: dict[str, Any]
    result: Any


@dataclass
class LeafCall:
    """A call of a submodule that has no others.

    Attributes:
        name: Its dotted name.
        part: Itself.
        given: Its first tensor argument.
        output: The tensor that it returned, or the first of several.
    """

    name: str
    part: nn.Module
    given: Tensor | None
    output: Tensor | None


@dataclass
class Step:
    """What a step came to.

    Attributes:
        loss: What it returned; None for nothing.
        losses: The calls of losses, in order.
        leaves: The calls of submodules.
        calls: How often each submodule was called, those with others inside included.
        logged: What it logged, by the name that it gave.
        scores: Similarities, and likelihoods of values without a gradient, by what they are.
    """

    loss: Tensor | None = None
    losses: list[LossTensors] = field(default_factory=list)
    leaves: list[LeafCall] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    logged: dict[str, float] = field(default_factory=dict)
    scores: dict[str, list[Tensor]] = field(default_factory=dict)

    def note_score(self, what: str, result: Any) -> None:
        """Keep a score that has a gradient."""
        if isinstance(result, Tensor) and result.requires_grad:
            self.scores.setdefault(what, []).append(result)

    def prediction(self, rows: int) -> Tensor | None:
        """What a loss got for each row of the batch, else the last submodule's output."""
        found = [one.output for one in self.losses if one.output.dim() and len(one.output) == rows]
        if found:
            return found[0]
        outputs = [one.output for one in self.leaves if one.output is not None]
        fits = [one for one in outputs if one.dim() and len(one) == rows]
        return fits[-1] if fits else None


class _Capture(TorchFunctionMode):
    """Notes calls of losses."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in LOSSES:
            options = dict(zip(LOSSES[name], args, strict=False)) | (kwargs or {})
            output, target = (options.pop(one, None) for one in LOSSES[name][:2])
            if isinstance(output, Tensor) and isinstance(target, Tensor):
                self._step.losses.append(LossTensors(name, output, target, options, result))
        elif name == "cosine_similarity":
            self._step.note_score("cosine similarity of outputs", result)
        return result


def first_tensor(value: Any) -> Tensor | None:
    """A tensor, or the first one in a tuple, list or mapping."""
    if isinstance(value, Tensor):
        return value
    several = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    )
    return next((one for one in map(first_tensor, several) if one is not None), None)


@contextmanager
def _watched(module: nn.Module, step: Step) -> Iterator[None]:
    handles: list[Any] = []
    for name, part in module.named_modules():
        if name:

            def note(part: nn.Module, given: Any, output: Any, name: str = name) -> None:
                step.calls[name] += 1
                if next(part.children(), None) is None:
                    step.leaves.append(LeafCall(name, part, first_tensor(given), first_tensor(output)))

            handles.append(part.register_forward_hook(note))
    try:
        with _Capture(step):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _likelihoods_noted(step: Step, batch: Any) -> Iterator[None]:
    """Note log-likelihoods of the tensors of a batch under any distribution."""
    lies = {memory_of(one) for _, one in tensors_in(batch)} - {0}

    def noting(own: Callable[..., Any]) -> Callable[..., Any]:
        def log_prob(self: Any, value: Any) -> Any:
            result = own(self, value)
            if isinstance(value, Tensor) and memory_of(value) in lies:
                step.note_score("log-likelihood of data", result)
            return result

        return log_prob

    with ExitStack() as patches:
        for kind in vars(torch.distributions).values():
            own = vars(kind).get("log_prob") if isinstance(kind, type) else None
            if own is not None:
                patches.enter_context(mock.patch.object(kind, "log_prob", noting(own)))
        yield


def take_step(
    module: Any, batch: Any, *, method: str = "training_step", seed: int = 1, trainer: Any = None
) -> Step:
    """Call a step of a module by itself; it logs into what is returned.

    Args:
        module: In the mode in which the step is to compute.
        batch: As the step gets it; the step gets a copy.
        method: The step's name.
        seed: Of what it draws.
        trainer: What ``self.trainer`` is meanwhile.
    """
    call, step = getattr(module, method), Step()

    def log(name: str, value: Any, **options: Any) -> None:
        if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
            step.logged[name] = float(value)

    given = (map_tensors(batch, torch.clone), 0, 0)[: max(1, positional_arguments(call))]
    names = vars(module)
    kept = {name: names[name] for name in ("log", "_trainer") if name in names}
    names.update({"log": log, "_trainer": trainer})
    try:
        with seeded(seed, module.device), _watched(module, step), _likelihoods_noted(step, given[0]):
            output = call(*given)
    finally:
        del names["log"], names["_trainer"]
        names.update(kept)
    loss = output.get("loss") if isinstance(output, dict) else output
    if isinstance(loss, tuple):
        loss = first_tensor(loss)
    step.loss = loss if isinstance(loss, Tensor) and loss.numel() == 1 else None
    return step
