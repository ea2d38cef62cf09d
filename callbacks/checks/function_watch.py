"""Watches the functions of torch that a step calls: losses, dropouts, reshapes, comparisons, ReLUs."""

from __future__ import annotations

import inspect
import linecache
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from ...errors import is_users_frame
from .layer_watch import LayerWatch
from .seen import FunctionCall, LossCall, Phase, Seen, Stranger, TensorFacts, UnitFacts
from .tensor_facts import facts_of, is_readable, memory_of, tensors_in

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
_PRODUCTS = {"mul", "__mul__", "__rmul__"}
_THRESHOLDS = {"gt": "gt", "ge": "ge", "__gt__": "gt", "__ge__": "ge", "lt": "lt", "round": "round"}
_AXES = {"softmax": "softmax", "log_softmax": "log_softmax", "argmax": "argmax", "sigmoid": "sigmoid"}
_UNITS = {"relu", "relu_"}
_QUESTIONS = {"numel", "dim", "size", "detach", "__len__", "is_contiguous", "is_complex", "element_size"}
_QUESTIONS |= {"is_floating_point", "_set_grad_enabled", "promote_types", "data_ptr", "untyped_storage"}
"""Functions that compute nothing with a gradient, and are called often."""
_VALUED = set(_THRESHOLDS.values())
"""Functions of which the values of the inputs are noted too."""
_MOST_CALLS = 2000
_MOST_STRANGERS = 64
_FIRST_VALUES = 16


class FunctionWatch(TorchFunctionMode):
    """Fills ``Seen`` while it is active; what functions compute is not touched.

    Args:
        seen: What it fills.
        layers: Says which layer calls.
        failed: Called with its errors, which do not reach the run.

    Attributes:
        known: The ids of the parameters of the module and of the optimizers; None where steps compute with
            others, as with weights that are split over ranks.
        targets: Places in the batch of what a loss took as its target.
    """

    def __init__(self, seen: Seen, layers: LayerWatch, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._seen, self._layers, self._failed = seen, layers, failed
        self.known: set[int] | None = None
        self._phase: Phase = "train"
        self._step = 0
        self._batch_memory: dict[int, str] = {}
        self._numbers: Counter[str] = Counter()
        self._strangers: dict[int, Stranger] = {}
        self.targets: set[str] = set()
        self._active = False
        self._handle: Any = None

    def begin(self, phase: Phase, step: int, batches: Any) -> None:
        """Watch what follows, as of a step."""
        self._phase, self._step = phase, step
        self.take_batch(batches)
        if not self._active:
            self._active = True
            self._handle = register_optimizer_step_pre_hook(self._before_update)
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
            self._handle.remove()
            self._batch_memory = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._layers.busy:
            return result
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS or (name == "__get__" and not isinstance(result, Tensor)):
            return result
        try:
            self._look(name, args, kwargs, result)
        except Exception as error:
            self._failed(error)
        return result

    def _look(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, Tensor) and not is_readable(result):
            return
        known = self.known
        for one in _flat(args) if known is not None else ():
            is_stranger = one.requires_grad and one.is_leaf and known is not None and id(one) not in known
            if is_stranger and is_readable(one):
                self._meet(one, result)
        if _is_in_place(name, kwargs) and args and isinstance(args[0], Tensor):
            self._layers.forget(args[0])
        if name in LOSSES:
            self._take_loss(name, args, kwargs, result)
        elif name in _UNITS and isinstance(result, Tensor):
            self._take_units(args[0] if args else result, result)
        elif name in _DROPOUTS:
            in_evaluation = (
                self._phase == "val" and not self._layers.training and kwargs.get("training", True)
            )
            self._take(name, args, kwargs | ({"line": _line_of_the_user()} if in_evaluation else {}), None)
        elif name in ("scaled_dot_product_attention", "backward"):
            self._take(name, args, kwargs, None)
        elif name in ("view", "reshape") and isinstance(result, Tensor):
            if scrambles(tuple(args[0].shape), tuple(result.shape)):
                self._take(name, args, {}, result)
        elif name in _AXES or name in _THRESHOLDS:
            self._take((_AXES | _THRESHOLDS)[name], args, kwargs, result)
        elif name in _COMPARISONS or name in _DIFFERENCES:
            shapes = [tuple(one.shape) for one in args[:2] if isinstance(one, Tensor)]
            if len(shapes) == 2 and shapes[0] != shapes[1] and all(shapes):
                self._take((_COMPARISONS | _DIFFERENCES)[name], args, {}, result)
        elif name in _PRODUCTS and _are_column_and_row(args):
            self._take("mul", args, {}, result)

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
                options={k: tuple(v.shape) if isinstance(v, Tensor) else v for k, v in options.items()},
                value=float(result.detach()) if is_number else None,
            )
        )

    def _take_units(self, given: Tensor, result: Tensor) -> None:
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
        is_zero = given is not result and not bool(given.any())
        if is_zero:  # nothing came in: the first state of a recurrent layer
            return
        if found is None or found.count != dead.numel():
            self._seen.units[key] = UnitFacts(dead.numel(), dead, rows, self._step, dead)
        else:
            found.dead, found.samples, found.step = found.dead & dead, found.samples + rows, self._step
            found.dead_now = dead

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
                inputs=[self._facts(one, light=name not in _VALUED) for one in tensors],
                result=self._facts(result, light=True) if isinstance(result, Tensor) else None,
                options=others,
                training=self._layers.training,
            )
        )

    def _meet(self, tensor: Tensor, result: Any) -> None:
        """Note a trainable tensor from outside, where a gradient may reach it."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        if self._phase != "train" or not any(getattr(one, "requires_grad", False) for one in results):
            return
        found = self._strangers.get(id(tensor))
        if found is None or found.parameter() is not tensor:
            if len(self._strangers) >= _MOST_STRANGERS:
                return
            is_parameter = isinstance(tensor, nn.Parameter)
            # A parameter is kept, so that no other gets its id; a plain tensor may be as large as a batch.
            holds = partial(_itself, tensor) if is_parameter else weakref.ref(tensor)
            found = Stranger(holds, is_parameter, self._layers.current, set(), _first_values(tensor))
            self._strangers[id(tensor)] = found
            self._seen.strangers.append(found)
        found.steps.add(self._step)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Which tensors from outside got a gradient, and which change."""
        try:
            with torch.no_grad(), self._layers.taking_notes():
                for one in self._strangers.values():
                    tensor = one.parameter()
                    if tensor is not None:
                        one.has_gradient = one.has_gradient or tensor.grad is not None
                        one.changed = one.changed or not torch.equal(one.first, _first_values(tensor))
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Watch no longer, and keep no tensors."""
        self.end()
        self._strangers.clear()
        self._seen.strangers.clear()


def _are_column_and_row(args: Any) -> bool:
    if len(args) != 2 or not all(isinstance(one, Tensor) for one in args):
        return False
    row, column = sorted((tuple(one.shape) for one in args), key=len)
    return len(row) == 1 and column == (row[0], 1) and row[0] > 1


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _first_values(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1)[:_FIRST_VALUES].clone()


def _flat(args: Any) -> Iterator[Tensor]:
    """The tensors among the first arguments, and in lists of them, as recurrent layers pass weights."""
    for one in args[:8]:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from (each for each in one[:16] if isinstance(each, Tensor))


def _is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    dunder = name.startswith("__")
    return name.startswith("__i") if dunder else name.endswith("_") or bool(kwargs.get("inplace"))


def _line_of_the_user() -> str:
    """The lines of the innermost call out of code that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()[:-1]):
        if is_users_frame(frame.filename) and frame.lineno is not None:
            last = frame.end_lineno or frame.lineno
            return "".join(linecache.getline(frame.filename, n) for n in range(frame.lineno, last + 1))
    return ""


def scrambles(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape may mix axes up: it gives the same sizes in another order, or its parts overlap.

    A reshape that splits axes and merges neighbours keeps what belongs together. The places where an axis
    of either shape begins divide one another then.
    """
    old, new = ([n for n in shape if n != 1] for shape in (before, after))
    if old == new or len(old) < 2 or len(new) < 2 or 0 in old:
        return False
    if sorted(old) == sorted(new) or _moves_axis_one(old, new) or _moves_axis_one(new, old):
        return True
    ends = sorted({*accumulate(old, mul), *accumulate(new, mul)})
    return any(later % sooner for sooner, later in pairwise(ends))


def _moves_axis_one(three: list[int], four: list[int]) -> bool:
    """Whether (batch, length, width) becomes (batch, heads, length, part of the width), or the reverse."""
    if len(three) != 3 or len(four) != 4 or three[0] != four[0] or three[1] == four[1]:
        return False
    return three[1] == four[2] and four[1] * four[3] == three[2]
