"""Logged values: kept where they are, reduced exactly, copied to the host once per log point.

A value on the CPU is read at once, which costs nothing. A value on an accelerator is kept with its weight
and read with all others in one copy when it is asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from ...callbacks.monitors.monitor import full_name
from ...callbacks.monitors.scalars import on_host
from ...errors import PacelineError, nearest
from ...strategies.ranks.collectives import Collectives
from ...strategies.ranks.comparison import same_everywhere
from ...strategies.tensors.sharding import whole
from ..utils.nested import describe
from .accumulator import Sums, Value
from .metric_objects import States, merged_over
from .over_ranks import SumsOverRanks
from .scalars import as_number, not_a_number

REDUCTIONS = ("mean", "sum", "min", "max")
_MOST_PENDING = 1024


class MetricStore:
    """What was logged and not yet reduced. One store serves one phase of a run.

    Attributes:
        phase: ``train``, ``val`` or ``test``: what a name without "/" belongs to.
        weight: The samples in the batch under way: the weight of a value that names none.
        loader_name: The dataloader under way, where there are several; part of every name.
        objects: torchmetrics objects logged in this epoch and not yet computed, by full name.
        shown: Full names asked for on the progress bar.
        repeats: Full names that are skipped as long as they have the values of another name, which stands
            beside them; None beside one that had another value once.
        log_line: Takes a line for the log.
    """

    def __init__(
        self, phase: str, log_line: Callable[[str], None], ranks: Collectives | None = None
    ) -> None:
        self.phase = phase
        several = ranks is not None and ranks.world_size > 1
        self._ranks = ranks if several else None
        self._over_ranks = None if self._ranks is None else SumsOverRanks(self._ranks)
        self.weight: float = 1
        self.loader_name = ""
        self.shown: dict[str, None] = {}
        self.repeats: dict[str, str | None] = {}
        self.log_line = log_line
        self._values: dict[str, Value] = {}
        self.objects: dict[str, Any] = {}
        self._of_objects: dict[str, float] = {}  # computed at the end of a dataloader, not yet published
        self._held: dict[int, Any] = {}  # computed, and reset when the hooks of the end have seen them
        self._of_loaders: dict[int, tuple[Any, States]] = {}  # what they counted for an earlier dataloader
        self._shared: dict[int, Any] = {}  # logged for several dataloaders
        self._known: dict[str, Value] = {}
        self._waiting: list[Value] = []
        self._nan_reported: set[str] = set()
        self._pending = 0

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
            PacelineError: for a value that is not a scalar, and for an unknown ``reduce``.
        """
        known = self._known.get(name)
        if known is None or known.reduce != reduce or (prog_bar and not known.shown):
            if isinstance(value, Mapping) or hasattr(value, "compute"):
                self._keep_object(name, value, prog_bar)
                return
            known = self._open(name, reduce, prog_bar)
        weight = self.weight if weight is None else weight
        if type(value) is not float:
            if isinstance(value, Tensor) and type(value) is not Tensor:
                value = whole(value.detach())  # of logits that are split over ranks, say
            if not isinstance(value, Tensor):
                value = as_number(name, value)
            elif value.is_cpu:
                try:
                    value = value.item()
                except RuntimeError:
                    raise not_a_number(name, value) from None
                if type(value) is complex:
                    raise not_a_number(name, value)
            else:
                self._keep_pending(name, known, value, weight)
                return
        if value != value:
            self._report_nan(name)
        known.add(value, weight if type(weight) is int else float(weight))

    def keep(self) -> Callable[[], None]:
        """What takes back all that is logged after this call; no point in between reduces anything."""
        values, objects = dict(self._values), dict(self.objects)
        parts = [(copy.copy(value.window), list(value.pending)) for value in values.values()]

        def take_back() -> None:
            self._values, self.objects = values, objects
            self._known.clear()
            for value, (window, pending) in zip(values.values(), parts, strict=True):
                value.window, value.pending = window, pending
            self._waiting = [value for value in values.values() if value.pending]
            self._pending = sum(len(value.pending) for value in self._waiting)

        return take_back

    def value(self, name: str) -> Value:
        """The mean kept under ``name``, for the loop to add to without a look-up."""
        return self._open(name, "mean", False)

    def _open(self, name: str, reduce: str, prog_bar: bool) -> Value:
        if reduce not in REDUCTIONS:
            raise PacelineError(
                f"log({name!r}): there is no reduction {reduce!r}",
                code="log-reduction",
                got=f"reduce={reduce!r}",
                allowed=", ".join(REDUCTIONS),
                meant=nearest(str(reduce), REDUCTIONS),
            )
        if not isinstance(name, str):
            raise PacelineError(
                "log: the name of a value is a string",
                code="not-loggable",
                got=describe(name),
                fix="self.log(name, value): the name comes first",
            )
        full = self.full_name(name)
        found = self._values.get(full)
        if found is not None and found.reduce != reduce:
            raise PacelineError(
                f"log({name!r}): the same name is logged with two reductions",
                code="log-reduction",
                got=f"{reduce!r}, and {found.reduce!r} before",
                fix="give one of them another name",
            )
        value = self._known[name] = self._values.setdefault(full, Value(reduce))
        value.shown = value.shown or prog_bar
        if prog_bar:
            self.shown[full] = None
        return value

    def has(self, full_name: str) -> bool:
        """Whether a value was logged under this name, on this rank."""
        return full_name in self._values

    def full_name(self, name: str) -> str:
        """The name with its phase, and its dataloader where there are several."""
        full = full_name(name, self.phase)
        if not self.loader_name:
            return full
        phase, _, rest = full.partition("/")
        return f"{phase}/{self.loader_name}/{rest}"

    def set_loader(self, name: str) -> None:
        """Names logged from now on belong to this one of several dataloaders; "": to all of them.

        Objects logged for the one before are computed and reset: they may serve this one too. Those that
        served one alone have what they counted again when all have been read.
        """
        if self.loader_name:
            self._compute_objects()
            for metric in self.held:
                self._end_loader_of(metric)
            self._held.clear()
            if not name:
                self._hold_again()
        self.loader_name = name
        self._known.clear()

    def _end_loader_of(self, metric: Any) -> None:
        if id(metric) in self._of_loaders:
            self._shared[id(metric)] = metric
        self._of_loaders[id(metric)] = metric, States(metric)
        metric.reset()

    def _hold_again(self) -> None:
        for key, (metric, states) in self._of_loaders.items():
            if key not in self._shared and states.is_unused:
                states.put_back()
                self._held[key] = metric
        self._of_loaders.clear()

    def _keep_object(self, name: str, value: Any, prog_bar: bool) -> None:
        if isinstance(value, Mapping) and not hasattr(value, "compute"):
            raise PacelineError(
                f"log({name!r}): a mapping is not a scalar",
                code="not-loggable",
                got=f"a mapping with keys {list(value)[:6]}",
                fix="self.log_dict(mapping)",
            )
        if id(value) in self._shared and not self.loader_name and States(value).is_unused:
            raise PacelineError(
                f"log({name!r}): a torchmetrics object that served several dataloaders is reset after each",
                code="not-loggable",
                fix="log an object for each dataloader, or read the values: trainer.metrics",
            )
        full = self.full_name(name)
        self.objects[full] = value
        if prog_bar:
            self.shown[full] = None

    def _keep_pending(self, name: str, known: Value, value: Tensor, weight: float | Tensor) -> None:
        if value.numel() != 1 or value.is_complex():
            raise not_a_number(name, value)
        if not known.pending:
            self._waiting.append(known)
        known.pending.append((value.detach(), weight))
        self._pending += 1
        if self._pending >= _MOST_PENDING:  # a long evaluation must not grow
            self._fold()

    def _report_nan(self, name: str) -> None:
        if name not in self._nan_reported:
            self._nan_reported.add(name)
            self.log_line(f"log({name!r}): the value is nan")

    def _fold(self) -> None:
        """Bring all waiting device values to the host in one copy."""
        pairs = [(known, pair) for known in self._waiting for pair in known.pending]
        if not pairs:
            return
        host = iter(on_host([t for _, pair in pairs for t in pair if isinstance(t, Tensor)]))
        for known, (_, weight) in pairs:
            number = next(host)
            known.add(number, next(host) if isinstance(weight, Tensor) else weight)
        for known in self._waiting:
            known.pending.clear()
        self._waiting.clear()
        self._pending = 0

    def close_window(self) -> dict[str, float]:
        """The values since the last call, by full name."""
        return self._results("window", keep=True)

    def close_epoch(self) -> dict[str, float]:
        """The epoch's values, torchmetrics objects computed; the window is closed too.

        The objects keep what they counted until ``reset_objects``: hooks may ask them again.
        """
        self._fold()
        for value in self._values.values():
            value.epoch.take(value.window)
            value.window.clear()
        return self._results("epoch") | self.take_objects()

    def take_objects(self) -> dict[str, float]:
        """The values of torchmetrics objects that were logged since the last call, by full name."""
        self._compute_objects()
        found, self._of_objects = self._of_objects, {}
        return found

    @property
    def held(self) -> list[Any]:
        """The torchmetrics objects that were computed and are not yet reset."""
        return list(self._held.values())

    def reset_objects(self) -> None:
        """Reset the torchmetrics objects that were computed: the epoch is over."""
        for metric in self.held:
            metric.reset()
        self._held.clear()
        self._shared.clear()

    def discard(self, objects: Iterable[Any]) -> None:
        """Drop all contributions; these torchmetrics objects are reset, as are those that were logged."""
        self._fold()
        for value in self._values.values():
            value.window.clear()
            value.epoch.clear()
        for metric in (*self.objects.values(), *objects):
            metric.reset()
        self.objects.clear()
        self._of_objects.clear()
        self._of_loaders.clear()
        self.reset_objects()

    def _compute_objects(self) -> None:
        names, ranks = sorted(self.objects), self._ranks  # one order on all ranks: each communicates
        self._compare_objects(names)
        for name in names:
            with merged_over(None if ranks is None else ranks.data_group, self.objects[name]):
                self._of_objects |= _computed(name, self.objects[name])
        for metric in self.objects.values():  # after them all: one may have two names
            if States(metric):
                self._held[id(metric)] = metric
            else:
                metric.reset()
        self.objects.clear()

    def _compare_objects(self, names: list[str]) -> None:
        if self._ranks is None:
            return
        if same_everywhere(self._ranks, names):
            return
        everyone = self._ranks.all_gather(names)
        for rank, theirs in enumerate(everyone):
            missing = sorted(set().union(*everyone) - set(theirs))
            if missing:
                raise PacelineError(
                    f"log({missing[0]!r}): a torchmetrics object was logged on some ranks, "
                    f"and not on rank {rank}",
                    code="ranks-differ",
                    fix="log it in every step, whatever the batch: its states are merged over all ranks",
                )

    def take_window(self) -> dict[str, float]:
        """The values since the last call, out of the window and not part of the epoch."""
        return self._results("window")

    def peek_window(self) -> dict[str, float]:
        """The values since the last call, left in the window."""
        return self._found(self._merged("window"))

    def _results(self, part: str, keep: bool = False) -> dict[str, float]:
        """The merged values of a part, which is reset; ``keep`` adds it to the epoch."""
        found = self._found(self._merged(part))
        for value in self._values.values():
            if keep:
                value.epoch.take(value.window)
            getattr(value, part).clear()
        for name in [name for name, other in self.repeats.items() if other is not None]:
            mine, other = found.get(name), found.get(str(self.repeats[name]))
            if mine == other or (mine != mine and other != other):
                found.pop(name, None)
            else:
                self.repeats[name] = None
        return found

    @staticmethod
    def _found(merged: dict[str, Sums]) -> dict[str, float]:
        return {name: found for name, sums in merged.items() if (found := sums.result()) is not None}

    def _merged(self, part: str) -> dict[str, Sums]:
        """The sums of a part over all ranks."""
        self._fold()
        mine: dict[str, Sums] = {name: getattr(value, part) for name, value in self._values.items()}
        if self._over_ranks is None:
            return mine
        return self._over_ranks.merged(mine)

    def state_dict(self) -> dict[str, Any]:
        """Sums of the window and the epoch under way over all ranks, as plain data."""
        windows, epochs = self._merged("window"), self._merged("epoch")
        return {name: [sums.plain(), epochs[name].plain()] for name, sums in windows.items()}

    def own_state(self) -> dict[str, Any]:
        """The same, of this rank alone."""
        self._fold()
        return {name: [v.window.plain(), v.epoch.plain()] for name, v in self._values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``own_state`` gave; or, on one rank, what ``state_dict`` did."""
        for name, (window, epoch) in state.items():
            value = self._values.setdefault(name, Value(window[0]))
            value.window, value.epoch = Sums(*window), Sums(*epoch)


def _computed(name: str, metric: Any) -> dict[str, float]:
    result = metric.compute()
    if isinstance(result, Mapping):
        prefix = name.rpartition("/")[0]
        return {f"{prefix}/{key}": float(value) for key, value in result.items()}
    if isinstance(result, Tensor) and result.numel() != 1:
        raise not_a_number(name, result)
    return {name: float(result)}
