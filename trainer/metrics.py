"""Logged values: kept where they are, reduced exactly, copied to the host once per log point.

A value on the CPU is read at once, which costs nothing. A value on an accelerator is kept with its weight
and read with all others in one copy when it is asked for. Sums are Python floats: double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..callbacks.monitor import full_name
from ..errors import PacelineError, nearest
from .batch import describe

REDUCTIONS = ("mean", "sum", "min", "max")


class _Value:
    """One name's contributions: those of the log window, and with ``_epoch`` those of the whole epoch."""

    __slots__ = ("count", "epoch_count", "epoch_total", "pending", "reduce", "shown", "total", "weight")

    def __init__(self, reduce: str) -> None:
        self.reduce, self.shown = reduce, False
        self.pending: list[tuple[Tensor, float | Tensor]] = []
        self.total, self.weight, self.count = _start(reduce), 0.0, 0
        self.epoch_total, self.epoch_count = _start(reduce), 0.0

    def add(self, value: float, weight: float) -> None:
        """Take one contribution that is on the host."""
        self.count += 1
        if self.reduce == "mean":
            if weight:  # what counts nothing cannot make it NaN either
                self.total += value * weight
                self.weight += weight
        elif self.reduce == "sum":
            self.total += value
        else:
            self.total = _pick(self.reduce, self.total, value)

    def peek_window(self) -> float | None:
        """The window's value; None where nothing came in."""
        return self._result(self.total, self.weight) if self.count else None

    def take_window(self) -> float | None:
        """The window's value, its sums forgotten."""
        value = self.peek_window()
        self.total, self.weight, self.count = _start(self.reduce), 0.0, 0
        return value

    def close_window(self) -> float | None:
        """The window's value, its sums added to the epoch's; None where nothing came in."""
        if not self.count:
            return None
        if self.reduce in ("mean", "sum"):
            self.epoch_total += self.total
        else:
            self.epoch_total = _pick(self.reduce, self.epoch_total, self.total)
        self.epoch_count += self.weight if self.reduce == "mean" else self.count
        return self.take_window()

    def close_epoch(self) -> float | None:
        """The epoch's value; None where nothing came in."""
        if not self.epoch_count:
            return None
        value = self._result(self.epoch_total, self.epoch_count)
        self.epoch_total, self.epoch_count = _start(self.reduce), 0.0
        return value

    def _result(self, total: float, weight: float) -> float:
        if self.reduce != "mean":
            return total
        return total / weight if weight else math.nan

    def state(self) -> list[Any]:
        return [self.reduce, self.total, self.weight, self.count, self.epoch_total, self.epoch_count]

    @classmethod
    def of(cls, state: list[Any]) -> _Value:
        value = cls(state[0])
        _, value.total, value.weight, value.count, value.epoch_total, value.epoch_count = state
        return value


def _start(reduce: str) -> float:
    return {"min": math.inf, "max": -math.inf}.get(reduce, 0.0)


def _pick(reduce: str, a: float, b: float) -> float:
    """The smaller or larger one; a NaN stays."""
    if a != a or b != b:
        return math.nan
    return min(a, b) if reduce == "min" else max(a, b)


class MetricStore:
    """What was logged and not yet reduced. One store serves one phase of a run.

    Attributes:
        phase: ``train``, ``val`` or ``test``: what a name without "/" belongs to.
        weight: The samples in the batch under way: the weight of a value that names none.
        loader_name: The dataloader under way, where there are several; part of every name.
        objects: torchmetrics objects logged in this epoch, by full name.
        shown: Full names asked for on the progress bar.
    """

    def __init__(self, phase: str, say: Callable[[str], None]) -> None:
        self.phase = phase
        self.weight: float = 1
        self.loader_name = ""
        self.shown: dict[str, None] = {}
        self._say = say
        self._values: dict[str, _Value] = {}
        self.objects: dict[str, Any] = {}
        self._known: dict[str, _Value] = {}
        self._waiting: list[_Value] = []
        self._nan_told: set[str] = set()

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        weight: float | Tensor | None = None,
        reduce: str = "mean",
    ) -> None:
        """Take one contribution.

        Raises:
            PacelineError: for a value that is not one number, and for an unknown ``reduce``.
        """
        known = self._known.get(name)
        if known is None or known.reduce != reduce or (prog_bar and not known.shown):
            if isinstance(value, Mapping) or hasattr(value, "compute"):
                self._keep_object(name, value, prog_bar)
                return
            known = self._open(name, reduce, prog_bar)
        weight = self.weight if weight is None else weight
        if type(value) is not float:
            if not isinstance(value, Tensor):
                value = _number(name, value)
            elif value.is_cpu:
                try:
                    value = value.item()
                except RuntimeError:
                    raise _not_a_number(name, value) from None
                if type(value) is complex:
                    raise _not_a_number(name, value)
            else:
                self._keep_pending(name, known, value, weight)
                return
        if value != value:
            self._tell_nan(name)
        known.add(value, weight if type(weight) is int else float(weight))

    def value(self, name: str) -> _Value:
        """The mean kept under ``name``, for the loop to add to without a look-up."""
        return self._open(name, "mean", False)

    def _open(self, name: str, reduce: str, prog_bar: bool) -> _Value:
        if reduce not in REDUCTIONS:
            raise PacelineError(
                f"log({name!r}): there is no reduction {reduce!r}",
                got=f"reduce={reduce!r}",
                allowed=", ".join(REDUCTIONS),
                meant=nearest(str(reduce), REDUCTIONS),
            )
        if not isinstance(name, str):
            raise PacelineError(
                "log: the name of a value is a string",
                got=describe(name),
                fix="self.log(name, value): the name comes first",
            )
        full = self._full(name)
        found = self._values.get(full)
        if found is not None and found.reduce != reduce:
            raise PacelineError(
                f"log({name!r}): the same name is logged with two reductions",
                got=f"{reduce!r}, and {found.reduce!r} before",
                fix="give one of them another name",
            )
        value = self._known[name] = self._values.setdefault(full, _Value(reduce))
        value.shown = value.shown or prog_bar
        if prog_bar:
            self.shown[full] = None
        return value

    def _full(self, name: str) -> str:
        full = full_name(name, self.phase)
        if not self.loader_name:
            return full
        phase, _, rest = full.partition("/")
        return f"{phase}/{self.loader_name}/{rest}"

    def set_loader(self, name: str) -> None:
        """Names logged from now on belong to this one of several dataloaders."""
        self.loader_name = name
        self._known.clear()

    def _keep_object(self, name: str, value: Any, prog_bar: bool) -> None:
        if isinstance(value, Mapping) and not hasattr(value, "compute"):
            raise PacelineError(
                f"log({name!r}): a mapping is not one number",
                got=f"a mapping with keys {list(value)[:6]}",
                fix="self.log_dict(mapping)",
            )
        full = self._full(name)
        self.objects[full] = value
        if prog_bar:
            self.shown[full] = None

    def _keep_pending(self, name: str, known: _Value, value: Tensor, weight: float | Tensor) -> None:
        if value.numel() != 1 or value.is_complex():
            raise _not_a_number(name, value)
        if not known.pending:
            self._waiting.append(known)
        known.pending.append((value.detach(), weight))

    def _tell_nan(self, name: str) -> None:
        if name not in self._nan_told:
            self._nan_told.add(name)
            self._say(f"log({name!r}): the value is nan")

    def _fold(self) -> None:
        """Bring all waiting device values to the host in one copy."""
        pairs = [(known, pair) for known in self._waiting for pair in known.pending]
        if not pairs:
            return
        device = pairs[0][1][0].device
        wide = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        numbers = [t.to(device, wide).reshape(()) for _, p in pairs for t in p if isinstance(t, Tensor)]
        host = iter(torch.stack(numbers).tolist())
        for known, (_, weight) in pairs:
            number = next(host)
            known.add(number, next(host) if isinstance(weight, Tensor) else weight)
        for known in self._waiting:
            known.pending.clear()
        self._waiting.clear()

    def _each(self, read: Callable[[_Value], float | None]) -> dict[str, float]:
        self._fold()
        return {n: found for n, value in self._values.items() if (found := read(value)) is not None}

    def close_window(self) -> dict[str, float]:
        """The values since the last call, by full name."""
        return self._each(_Value.close_window)

    def close_epoch(self) -> dict[str, float]:
        """The epoch's values, torchmetrics objects computed and reset; the window is closed too."""
        self.close_window()
        result = self._each(_Value.close_epoch)
        for name, metric in self.objects.items():
            result |= _computed(name, metric)
        self.objects.clear()
        return result

    def take_window(self) -> dict[str, float]:
        """The values since the last call, out of the window and not part of the epoch."""
        return self._each(_Value.take_window)

    def peek_window(self) -> dict[str, float]:
        """The values since the last call, left in the window."""
        return self._each(_Value.peek_window)

    def state_dict(self) -> dict[str, Any]:
        """Sums of the window and the epoch under way, as plain data."""
        self._fold()
        return {name: value.state() for name, value in self._values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self._values = {name: _Value.of(saved) for name, saved in state.items()}


def _computed(name: str, metric: Any) -> dict[str, float]:
    result = metric.compute()
    metric.reset()
    if isinstance(result, Mapping):
        prefix = name.rpartition("/")[0]
        return {f"{prefix}/{key}": float(value) for key, value in result.items()}
    if isinstance(result, Tensor) and result.numel() != 1:
        raise _not_a_number(name, result)
    return {name: float(result)}


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise _not_a_number(name, value) from None


def _not_a_number(name: str, value: Any) -> PacelineError:
    if isinstance(value, Tensor) or hasattr(value, "shape"):
        got = f"a tensor of shape {tuple(value.shape)}"
        return PacelineError(
            f"log({name!r}): only single numbers can be logged",
            got=got,
            fix=f"self.log({name!r}, value.mean()), or one name per element",
        )
    return PacelineError(
        f"log({name!r}): only single numbers can be logged",
        got=f"{value!r} ({type(value).__name__})"[:200],
        allowed="a number, a tensor of one element, a torchmetrics object",
    )
