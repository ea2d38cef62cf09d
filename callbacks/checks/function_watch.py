"""Watches the functions of torch that a step calls: losses, dropouts, reshapes, comparisons, ReLUs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .layer_watch import LayerWatch
from .seen import FunctionCall, LossCall, Phase, Seen, Stranger, TensorFacts, UnitFacts
from .tensor_facts import facts_of, memory_of, tensors_in

LOSSES = {
    function.__name__: list(inspect.signature(function).parameters)
    for function in (
        *(F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
        *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.poisson_nll_loss),
        *(F.gaussian_nll_loss, F.soft_margin_loss, F.multilabel_soft_margin_loss, F.multi_margin_loss),
        *(F.cosine_embedding_loss, F.margin_ranking_loss, F.hinge_embedding_loss, F.ctc_loss),
        *(F.triplet_margin_loss,),
    )
}
"""Names of losses, with the names of their arguments."""
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
_COMPARISONS = {"__eq__": "eq", "eq": "eq", "ne": "ne", "__ne__": "ne"}
_DIFFERENCES = {"sub": "sub", "__rsub__": "sub", "__sub__": "sub"}
_THRESHOLDS = {"gt": "gt", "ge": "ge", "__gt__": "gt", "__ge__": "ge", "lt": "lt", "round": "round"}
_AXES = {"softmax": "softmax", "log_softmax": "log_softmax", "argmax": "argmax", "sigmoid": "sigmoid"}
_UNITS = {"relu", "relu_"}
_MOST_CALLS = 2000


class FunctionWatch(TorchFunctionMode):
    """Fills ``Seen`` while it is active; what functions compute is not touched.

    Args:
        seen: What it fills.
        layers: Says which layer calls.
        known: The ids of the parameters of the module and of the optimizers.
        failed: Called with an error of its own, which does not reach the run.
    """

    def __init__(
        self, seen: Seen, layers: LayerWatch, known: set[int], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._seen, self._layers, self._known, self._failed = seen, layers, known, failed
        self._phase: Phase = "train"
        self._step = 0
        self._batch_memory: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()
        self._strangers: dict[int, Stranger] = {}
        self.targets: set[str] = set()
        self._active = False

    def begin(self, phase: Phase, step: int, batches: Any) -> None:
        """Watch what follows, as of a step."""
        self._phase, self._step = phase, step
        self.take_batch(batches)
        if not self._active:
            self._active = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def take_batch(self, batches: Any) -> None:
        """Know the batch of what follows."""
        self._batch_memory = {}
        self._numbers.clear()
        for batch in batches:
            for place, one in tensors_in(batch):
                self._batch_memory.setdefault(memory_of(one), place)
        self._batch_memory.pop(0, None)

    def end(self) -> None:
        """Watch no longer."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._batch_memory = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        if self._layers.busy:
            return result
        try:
            with torch.no_grad():
                self._look(name, args, kwargs, result)
        except Exception as error:
            self._failed(error)
        return result

    def _look(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        for one in args[:3]:
            if type(one) is nn.Parameter and one.requires_grad and id(one) not in self._known:
                self._meet(one, result)
        if name in LOSSES:
            self._take_loss(name, args, kwargs, result)
        elif name in _UNITS and isinstance(result, Tensor):
            self._take_units(result)
        elif name in _DROPOUTS:
            self._take(name, args, kwargs, None)
        elif name in ("view", "reshape") and isinstance(result, Tensor):
            if _axes_only_reordered(tuple(args[0].shape), tuple(result.shape)):
                self._take(name, args, {}, result)
        elif name in _AXES or name in _THRESHOLDS:
            self._take((_AXES | _THRESHOLDS)[name], args, kwargs, result)
        elif name in _COMPARISONS or name in _DIFFERENCES:
            shapes = [tuple(one.shape) for one in args[:2] if isinstance(one, Tensor)]
            if len(shapes) == 2 and shapes[0] != shapes[1] and all(shapes):
                self._take((_COMPARISONS | _DIFFERENCES)[name], args, {}, result)

    def _facts(self, tensor: Tensor, light: bool = False) -> TensorFacts:
        return facts_of(tensor, frozenset(self._batch_memory), light)

    def _take_loss(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        options = dict(zip(LOSSES[name], args, strict=False)) | kwargs
        output, target = (options.pop(one, None) for one in LOSSES[name][:2])
        if not isinstance(output, Tensor) or not isinstance(target, Tensor):
            return
        place = self._batch_memory.get(memory_of(target))
        if place is not None:
            self.targets.add(place)
        is_number = isinstance(result, Tensor) and result.numel() == 1
        self._seen.losses.append(
            LossCall(
                function=name,
                layer=self._layers.current,
                phase=self._phase,
                step=self._step,
                output=self._facts(output),
                target=self._facts(target),
                options={key: one for key, one in options.items() if not isinstance(one, Tensor)},
                value=float(result) if is_number else None,
                result_key=id(result),
            )
        )

    def _take_units(self, result: Tensor) -> None:
        if self._phase != "train" or not result.numel() or result.dim() < 2:
            return
        axis = 1 if result.dim() == 4 or (result.dim() == 3 and self._layers.has_channels_first) else -1
        others = [i for i in range(result.dim()) if i != axis % result.dim()]
        dead = (result.detach() == 0).all(dim=others).cpu() if others else (result == 0).cpu()
        number = self._numbers[self._layers.current]
        self._numbers[self._layers.current] += 1
        key = f"{self._layers.current}#{number}" if number else self._layers.current
        found = self._seen.units.get(key)
        rows = result.numel() // max(1, dead.numel())
        if found is None or found.count != dead.numel():
            self._seen.units[key] = UnitFacts(dead.numel(), dead, rows, self._step)
        else:
            found.dead, found.samples, found.step = found.dead & dead, found.samples + rows, self._step

    def _take(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if len(self._seen.calls) >= _MOST_CALLS:
            return
        others = {str(i): one for i, one in enumerate(args) if not isinstance(one, Tensor)}
        others |= {key: one for key, one in kwargs.items() if not isinstance(one, Tensor)}
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        self._seen.calls.append(
            FunctionCall(
                function=name,
                layer=self._layers.current,
                phase=self._phase,
                step=self._step,
                inputs=[self._facts(one, light=True) for one in tensors],
                result=self._facts(result, light=True) if isinstance(result, Tensor) else None,
                options=others,
                training=self._layers.training,
            )
        )

    def _meet(self, parameter: Tensor, result: Any) -> None:
        """Note a trainable parameter from outside, where a gradient may reach it."""
        if self._phase != "train" or not getattr(result, "requires_grad", False):
            return
        found = self._strangers.get(id(parameter))
        if found is None:
            if len(self._strangers) >= 64:
                return
            found = Stranger(parameter, self._layers.current, set())
            self._strangers[id(parameter)] = found  # which keeps it: no other gets its id
            self._seen.strangers.append(found)
        found.steps.add(self._step)

    def note_gradients(self) -> None:
        """After a backward pass: which parameters from outside got a gradient."""
        for one in self._strangers.values():
            one.has_gradient = one.has_gradient or one.parameter.grad is not None

    def close(self) -> None:
        """Watch no longer, and keep no tensors."""
        self.end()
        self._strangers.clear()


def _axes_only_reordered(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape gives the same sizes in another order, those of 1 aside."""
    old, new = ([n for n in shape if n != 1] for shape in (before, after))
    return old != new and sorted(old) == sorted(new)
