"""Watches the submodules that a step calls: their modes, inputs and outputs, and which one is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .seen import LayerFacts, Phase, Seen
from .tensor_facts import facts_of

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayerWatch:
    """Fills the layers of ``Seen`` between ``begin`` and ``end``, by hooks that change nothing.

    Args:
        seen: What it fills.
        failed: Called with an error of its own, which does not reach the run.

    Attributes:
        busy: Whether functions are called to take notes, and not by the run.
        has_channels_first: Whether axis 1 of a tensor with three axes is its channels.
    """

    def __init__(self, seen: Seen, failed: Callable[[Exception], None]) -> None:
        self._seen, self._failed = seen, failed
        self._handles: list[Any] = []
        self._stack: list[tuple[str, nn.Module]] = []
        self._phase: Phase = "train"
        self._order = 0
        self.has_channels_first = self.busy = False

    @contextmanager
    def taking_notes(self) -> Iterator[None]:
        """What is called inside is no call of the run."""
        before, self.busy = self.busy, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.busy = before

    @property
    def current(self) -> str:
        """The dotted name of the submodule that is running; "" for the step itself."""
        return self._stack[-1][0] if self._stack else ""

    @property
    def training(self) -> bool:
        """The mode of the submodule that is running."""
        return self._stack[-1][1].training if self._stack else self._seen.module.training

    def begin(self, phase: Phase) -> None:
        """Watch what follows."""
        self._phase = phase
        self._stack.clear()
        if self._handles:
            return
        module = self._seen.module
        self.has_channels_first = any(isinstance(part, _CONVOLUTIONS) for part in module.modules())
        for name, part in module.named_modules():
            if name and not isinstance(part, torch.jit.ScriptModule):
                self._handles.append(part.register_forward_pre_hook(partial(self._enter, name)))
                after = partial(self._leave, name)
                self._handles.append(part.register_forward_hook(after, always_call=True))

    def end(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()

    def _enter(self, name: str, part: nn.Module, args: Any) -> None:
        self._stack.append((name, part))
        try:
            with self.taking_notes():
                self._note(name, part, args)
        except Exception as error:
            self._failed(error)

    def _note(self, name: str, part: nn.Module, args: Any) -> None:
        facts = self._seen.layers.setdefault(name, LayerFacts())
        if facts.order < 0:
            facts.order, self._order = self._order, self._order + 1
        facts.calls[self._phase] = facts.calls.get(self._phase, 0) + 1
        facts.modes.setdefault(self._phase, set()).add(part.training)
        given = next((one for one in args if isinstance(one, Tensor)), None)
        if self._phase != "train" or given is None:
            return
        if facts.first_input is None and next(part.children(), None) is None:
            facts.first_input = facts_of(given, sample=0)
        if isinstance(part, NORMS) and part.training and given.numel():
            values = given.numel() // given.shape[1]
            facts.values_per_channel = min(facts.values_per_channel or values, values)
            facts.rows = min(facts.rows or len(given), len(given))

    def _leave(self, name: str, part: nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._stack[-1][0] == name:
            self._stack.pop()
        if self._phase != "train":
            return
        facts = self._seen.layers.setdefault(name, LayerFacts())
        facts.calls_with_grad += torch.is_grad_enabled()
        try:
            if isinstance(output, Tensor) and next(part.children(), None) is None:
                with self.taking_notes():
                    facts.output = facts_of(output, sample=0)
        except Exception as error:
            self._failed(error)
