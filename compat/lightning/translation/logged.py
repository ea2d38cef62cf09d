"""``self.log`` with Lightning's arguments; metrics by the names they were logged under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .... import PacelineError
from ....callbacks.monitors.monitor import full_name, monitor_name
from ....trainer.metrics.metric_objects import latest_value
from .evaluation_steps import EvaluationSteps, with_end

_AT_EPOCHS = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")
_PREFIXES = ("train/", "val/", "test/", "lr/", "momentum/", "weight_decay/", "perf/", "time/")
"""Of values that the run adds; those of callbacks have others."""
_LOSS = "train/loss"
_OF_LOSS = ("train/loss_logged", "train/train_loss")
"""What the module logs as ``loss`` and as ``train_loss``."""
_REDUCTIONS = {
    "mean": "mean",
    "sum": "sum",
    "min": "min",
    "max": "max",
    torch.mean: "mean",
    torch.sum: "sum",
    torch.min: "min",
    torch.max: "max",
    min: "min",
    max: "max",
    sum: "sum",
}


@dataclass
class _Entry:
    """A value under one of Lightning's names.

    Attributes:
        full: Its name in ``trainer.metrics`` of the run.
        on_step: Whether each step's value counts.
        on_epoch: Whether the mean over the epoch counts.
        shown: On the progress bar.
        logged: Handed to the loggers.
        loader: The dataloader that it is of; empty where there is one, or it is of all.
        is_object: Whether it is a torchmetrics object, whose steps' values have their own name.
        latest: The last step's value; None before it.
        pending: A value of an epoch's start or end, until the run has published it.
        read: The same, from the moment that anybody reads it in the hook that logs it.
        is_epoch: Whether the name without a suffix means the epoch's value at the moment.
        updated: When it got a value last: of the values under one name the newest counts.
    """

    full: str
    on_step: bool
    on_epoch: bool
    shown: bool
    logged: bool
    loader: str
    is_object: bool
    latest: Tensor | None = None
    pending: Tensor | None = None
    read: Tensor | None = None
    is_epoch: bool = False
    updated: int = 0

    @property
    def forked(self) -> bool:
        """Whether both count, under the name with a suffix each."""
        return self.on_step and self.on_epoch


class LoggedValues:
    """What modules and callbacks log, and what ``callback_metrics`` and the like give.

    Attributes:
        others: Values that callbacks add to ``callback_metrics``.
        evaluation_steps: Those of single batches of an evaluation.
        place: The hook under way, where it decides what a value is.

    Args:
        metrics: Gives the run's reduced values by full name.
        log_line: Takes a line for the user.
    """

    def __init__(self, metrics: Callable[[], dict[str, float]], log_line: Callable[[str], None]) -> None:
        self._metrics, self._log_line = metrics, log_line
        self._entries: dict[tuple[bool, str], _Entry] = {}
        self._owners: dict[str, str] = {}
        self._repeats: dict[str, str | None] = {}  # names of what may be the loss of the step once more
        self._loaders: list[str] = []
        self._now = 0
        self._explained: set[str] = set()
        self.others: dict[str, Tensor] = {}
        self.evaluation_steps = EvaluationSteps()
        self.place = ""

    def clear(self) -> None:
        """A stage begins: nothing is logged."""
        self._entries.clear()
        self._owners.clear()
        self._repeats = {}
        self._loaders.clear()
        self.others.clear()
        self.evaluation_steps.clear()

    def log(self, adapter: Any, name: str, value: Any, options: dict[str, Any]) -> None:
        """``LightningModule.log``.

        Args:
            adapter: The module as our loop trains it: takes the value.
            name: As the user wrote it.
            value: A scalar or a torchmetrics object.
            options: The other arguments.

        Raises:
            PacelineError: where Lightning does not log either, and for a reduction that is none of ours.
        """
        logger = adapter._logger
        hook = "a prediction" if adapter.session.stage_name == "predict" else adapter.hooks.under_way
        if hook:
            raise PacelineError(
                f"self.log({name!r}) cannot be called in {hook}: no step or epoch takes the value",
                code="log-not-here",
                fix="log in a step or at the end of an epoch; self.logger.experiment takes values anywhere",
            )
        if logger is None:
            return
        training = logger.current is logger.train
        at_epochs = not training or self.place in _AT_EPOCHS
        on_step, on_epoch = options["on_step"], options["on_epoch"]
        on_step = (not at_epochs) if on_step is None else on_step
        on_epoch = at_epochs if on_epoch is None else on_epoch
        reduce_fx = options["reduce_fx"]
        if reduce_fx not in _REDUCTIONS:
            raise PacelineError(
                f"log({name!r}): a reduction of your own is not possible here",
                code="log-reduction",
                got=f"reduce_fx={reduce_fx!r}",
                allowed="'mean', 'sum', 'min', 'max'",
                fix="a torchmetrics object with your computation: self.log(name, metric)",
            )
        ours = self._ours(name, logger.current.phase, adapter.automatic_optimization)
        if logger.current is adapter.session.store:
            if ours in _OF_LOSS:
                self._repeats = logger.train.repeats
                self._repeats.setdefault(ours, _LOSS)
            full = logger.current.full_name(ours)
            self._register(logger, name, full, value, options, on_step, on_epoch, training)
        more = {"prog_bar": options["prog_bar"], "weight": options["batch_size"]}
        adapter.log(ours, value, reduce=_REDUCTIONS[reduce_fx], **more)
        latest = latest_value(value) if training and on_step and hasattr(value, "compute") else None
        if isinstance(latest, Tensor) and latest.numel() == 1:
            adapter.log(f"{ours}_step", latest, **more)

    def _ours(self, name: str, phase: str, automatic: bool) -> str:
        """Our name for a value: one for each of Lightning's, and not the name of the loss of a step.

        Under manual optimization the run itself logs no loss.
        """
        found = full_name(name, phase)
        if found == _LOSS and automatic:
            found = _OF_LOSS[name == "train_loss"]
        while self._owners.setdefault(found, name) != name:
            found += "_logged"
        return found

    def _published(self, full: str, values: Mapping[str, float]) -> str:
        """The name of a value among these: that of the loss, where it is skipped as a repetition."""
        base = full.removesuffix("_epoch")
        left_out = self._repeats.get(base) is not None and full not in values
        return full.replace(base, _LOSS) if left_out else full

    def _register(
        self,
        logger: Any,
        name: str,
        full: str,
        value: Any,
        options: dict[str, Any],
        on_step: bool,
        on_epoch: bool,
        training: bool,
    ) -> None:
        idx = logger.current.loader_name
        if idx and idx not in self._loaders:
            self._loaders.append(idx)
        key = f"{name}/dataloader_idx_{idx}" if idx and options["add_dataloader_idx"] else name
        if training and on_epoch and self.place != "on_train_epoch_end":
            full += "_epoch"
        is_object = hasattr(value, "compute")
        entry = self._entries.get((training, key))
        if entry is None or entry.full != full:
            shown, logged = options["prog_bar"], options["logger"]
            entry = _Entry(full, on_step, on_epoch, shown, logged, idx, is_object)
            self._entries[training, key] = entry
        if is_object and on_step:
            value = latest_value(value)  # Lightning logs it as the value of the step
        if isinstance(value, Tensor) or not is_object:
            number = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
            if on_step and training:
                entry.latest, entry.is_epoch = number, False
                self._touch(entry)
            elif on_step:
                step = with_end(key, "_step" * entry.forked)
                self.evaluation_steps.note(step, number, idx, entry.shown, entry.logged)
            if self.place in _AT_EPOCHS or self.place.endswith("_epoch_end"):
                entry.pending = number
                self._touch(entry)
        if not options["logger"]:
            self._explain(
                "log(logger=False): every logged value goes to the loggers here, under the same name"
            )
        if on_step and is_object and value is None:
            self._explain(
                f"log({name!r}, metric): an object that is updated, and not called, is computed at the "
                "end of the epoch; no step has a value of it"
            )

    def _explain(self, text: str) -> None:
        if text not in self._explained:
            self._explained.add(text)
            self._log_line(text)

    def _touch(self, entry: _Entry) -> None:
        self._now += 1
        entry.updated = self._now

    def settle(self, training: bool) -> None:
        """What was logged at the end of an epoch, of training or of an evaluation, is published."""
        for (of_training, _), entry in self._entries.items():
            if of_training is training:
                entry.pending = entry.read = None

    def epoch_ended(self) -> None:
        """The means of a training epoch are published."""
        for (training, _), entry in self._entries.items():
            entry.is_epoch = entry.on_epoch
            if training and entry.on_epoch:
                self._touch(entry)

    def evaluated(self) -> None:
        """The values of an evaluation are published."""
        for (training, _), entry in self._entries.items():
            if not training:
                self._touch(entry)

    def full_name(self, name: str) -> str | None:
        """The run's name for one of Lightning's; None while a name without a phase was not logged yet."""
        entry = self._find(name)
        metrics = self._metrics()
        if entry is None and name.endswith(("_epoch", "_step")):
            base = self._find(name.rpartition("_")[0])
            if base is not None and base.forked:
                of_epoch = name.endswith("_epoch")
                return self._published(base.full if of_epoch else base.full.removesuffix("_epoch"), metrics)
        if entry is not None:
            return self._published(entry.full, metrics)
        has_phase = "/" in name or name.startswith(("train_", "val_", "test_"))
        return monitor_name(name) if has_phase else None

    def _find(self, name: str) -> _Entry | None:
        """The value that counts at the end of an epoch: the mean of training before that of validation."""
        of_training, other = self._entries.get((True, name)), self._entries.get((False, name))
        return of_training if of_training is not None and (of_training.on_epoch or other is None) else other

    @property
    def names(self) -> list[str]:
        """What was logged."""
        return sorted({key for _, key in self._entries})

    def _ordered(self) -> list[tuple[str, _Entry]]:
        found = sorted(self._entries.items(), key=lambda item: item[1].updated)
        return [(key, entry) for (_, key), entry in found]

    def named(self, row: dict[str, float], with_steps: bool) -> dict[str, float]:
        """The values of a row that the module and callbacks logged, by the names they gave them.

        Args:
            row: Values by full name.
            with_steps: Whether Lightning logs the values of this step: every ``log_every_n_steps``.
        """
        known: dict[str, str] = {}
        for (training, key), entry in self._entries.items():
            if not entry.logged:
                continue
            ends = ("_step", "_epoch") if entry.forked else ("", "")
            if training and entry.on_step and with_steps:
                full = entry.full.removesuffix("_epoch") if entry.on_epoch else entry.full
                known[self._published(full + "_step" * entry.is_object, row)] = with_end(key, ends[0])
            if entry.on_epoch:
                known[self._published(entry.full, row)] = with_end(key, ends[1])
        ours = {name for name in row if name.startswith(_PREFIXES)}
        return {known.get(name, name): row[name] for name in row if name in known or name not in ours}

    # -- what the trainer shows ----------------------------------------------------------------

    def callback(self) -> dict[str, Tensor]:
        """``trainer.callback_metrics``."""
        found: dict[str, Tensor] = {}
        for key, entry in self._ordered():
            mean = self._epoch_value(entry)
            values = {"_step": entry.latest, "_epoch": mean}
            plain = mean if entry.is_epoch or entry.latest is None else entry.latest
            if plain is not None:
                found[key] = plain
            if entry.forked:
                found |= {with_end(key, end): value for end, value in values.items() if value is not None}
        return CallbackMetrics(self.others, self.others | found)

    def logged(self) -> dict[str, Tensor]:
        """``trainer.logged_metrics``."""
        return self._selected(lambda entry: entry.logged) | self.evaluation_steps.logged()

    def shown(self) -> dict[str, float]:
        """``trainer.progress_bar_metrics``."""
        found = self._selected(lambda entry: entry.shown)
        return {k: float(v) for k, v in found.items()} | self.evaluation_steps.shown()

    def _selected(self, wanted: Callable[[_Entry], bool]) -> dict[str, Tensor]:
        values = self.callback()
        found: dict[str, Tensor] = {}
        for key, entry in self._ordered():
            if wanted(entry):
                ends = ("_step", "_epoch") if entry.forked else ("",)
                names = [with_end(key, end) for end in ends]
                found |= {name: values[name] for name in names if name in values}
        return found

    def _epoch_value(self, entry: _Entry) -> Tensor | None:
        if not entry.on_epoch:
            return None
        if entry.pending is not None and self.place:
            entry.read = entry.pending
        if entry.read is not None:
            return entry.read
        metrics = self._metrics()
        value = metrics.get(self._published(entry.full, metrics))
        return None if value is None else torch.tensor(value)

    def results(self, values: dict[str, float]) -> list[dict[str, float]]:
        """What ``validate`` and ``test`` return: a dictionary for each dataloader.

        Args:
            values: The reduced values by full name.
        """
        known = {entry.full: (key, entry) for (_, key), entry in self._entries.items()}
        parts: dict[str, dict[str, float]] = {loader: {} for loader in self._loaders or ("",)}
        for full, value in values.items():
            key, entry = known.get(full, (full, None))
            if entry is not None and not entry.on_epoch:
                continue  # a step's own value
            key = with_end(key, "_epoch") if entry is not None and entry.forked else key
            of = "" if entry is None else entry.loader  # empty: of all
            for loader, part in parts.items():
                if of in ("", loader):
                    part[key] = value
        return list(parts.values())


class CallbackMetrics(dict[str, Tensor]):
    """``trainer.callback_metrics``: a value that is set in it stays for callbacks that watch one.

    Args:
        others: Takes such values.
        values: All values.
    """

    def __init__(self, others: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        super().__init__(values)
        self._others = others

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._others[name] = torch.as_tensor(value)

    def update(self, *given: Any, **named: Any) -> None:
        """Set several."""
        for name, value in dict(*given, **named).items():
            self[name] = value
