"""Watches the submodules that a step calls: their modes, inputs and outputs, and which one is running."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .seen import LayerFacts, Phase, Seen
from .tensor_facts import facts_of

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
SEQUENTIAL = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Layers over sequences, which say whether the batch is the first axis."""
_KEPT = (nn.Sequential, nn.Identity)  # what they return is another layer's output
_SAMPLE = 256
_MOST = 2**13
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
ALL_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, *NORMS, *INSTANCE_NORMS)


def _nothing(*arguments: Any) -> None:
    """The hook of a copy."""


def _copied() -> Callable[..., None]:
    return _nothing


class Hook:
    """A hook of a module that copies of the module, also those in a file, have nothing of."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, ()


class LayerWatch:
    """Fills the layers of ``Seen`` between ``begin`` and ``end``, by hooks that change nothing.

    Args:
        seen: What it fills.
        failed: Called with its errors, which do not reach the run.

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
        self._made: dict[int, tuple[weakref.ref[Tensor], str]] = {}
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

    def maker_of(self, tensor: Tensor) -> str:
        """The layer that returned this tensor, where nothing has changed it since; "" for none."""
        made, name = self._made.get(id(tensor), (None, ""))
        return name if made is not None and made() is tensor else ""

    def forget(self, tensor: Tensor) -> None:
        """A tensor is changed in place: it is no more what its layer returned."""
        self._made.pop(id(tensor), None)

    def begin(self, phase: Phase) -> None:
        """Watch what follows."""
        self._phase = phase
        self._stack.clear()
        self._made.clear()
        if self._handles:
            return
        module = self._seen.module
        self.has_channels_first = any(isinstance(part, CONVOLUTIONS) for part in module.modules())
        for name, part in module.named_modules():
            if name and not isinstance(part, torch.jit.ScriptModule):
                before, after = Hook(partial(self._enter, name)), Hook(partial(self._leave, name))
                self._handles.append(part.register_forward_pre_hook(before))
                self._handles.append(part.register_forward_hook(after, always_call=True))

    def end(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()
        self._made.clear()

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
        maker = self.maker_of(given)
        if maker:
            facts.fed_by.add(maker)
        is_leaf = next(part.children(), None) is None
        if facts.first_input is None and (is_leaf or isinstance(part, SEQUENTIAL)):
            facts.first_input = facts_of(
                given, sample=_SAMPLE if isinstance(part, nn.Embedding) else 0, most=_MOST
            )
        if isinstance(part, NORMS) and part.training and given.numel():
            values = given.numel() // given.shape[1]
            facts.values_per_channel = max(facts.values_per_channel, values)
            facts.rows = max(facts.rows, len(given))

    def _leave(self, name: str, part: nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._stack[-1][0] == name:
            self._stack.pop()
        if self._phase != "train":
            return
        facts = self._seen.layers.setdefault(name, LayerFacts())
        facts.calls_with_grad += torch.is_grad_enabled()
        try:
            if isinstance(output, Tensor) and not isinstance(part, _KEPT):
                self._made[id(output)] = (weakref.ref(output), name)
            if isinstance(output, Tensor) and next(part.children(), None) is None:
                with self.taking_notes():
                    facts.output = facts_of(output, sample=0, most=_MOST)
        except Exception as error:
            self._failed(error)
