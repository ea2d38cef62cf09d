"""Looks at a fit: which steps are watched, and how."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..trainer_view import TrainerView
from .attributes import monitors_of, numbers_of
from .function_watch import FunctionWatch
from .layer_watch import LayerWatch
from .seen import LayerFacts, Phase, Seen
from .tensor_facts import batch_facts, is_readable, memory_of, tensors_in
from .update_watch import UpdateWatch, parameters_of

_UPDATES = 10
_WATCHED = (1, 2, 3, 10, 50, 250)
_BATCHES = 50
_EVALUATION_BATCHES = 100
_BUFFERS, _BUFFER_VALUES = 3, 256
_FITS: WeakKeyDictionary[nn.Module, tuple[str, int]] = WeakKeyDictionary()

Arguments = ParamSpec("Arguments")


def _guarded(
    look: Callable[Concatenate[Observer, Arguments], None],
) -> Callable[Concatenate[Observer, Arguments], None]:
    """An error of this method ends the watching, and not the run."""

    @functools.wraps(look)
    def guarded(self: Observer, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            look(self, *args, **kwargs)
        except Exception as error:
            self._fail(error)

    return guarded


class Observer:
    """Fills ``Seen``. An error of what looks ends it, and is a line of log.txt.

    Args:
        trainer: Of the run.
        looks: Whether this rank looks; one that does not only keeps the place.

    Attributes:
        seen: What was seen.
        notes_more: Whether any later step is noted.
        in_validation: Whether a validation is noted.
    """

    NOTED = tuple(sorted({*range(1, _BATCHES + 1), *_WATCHED}))
    """The steps of a fit of which anything is noted."""

    def __init__(self, trainer: TrainerView, looks: bool) -> None:
        self.looks = looks
        self.seen = Seen(trainer, settings=trainer.config["trainer"] if looks else {})
        self.notes_more, self.in_validation = looks, False
        self._trainer, self._restored = trainer, frozenset(trainer.metrics)  # by a resume
        self.seen.first_epoch = trainer.epoch
        self._buffers: dict[str, Tensor] = {}
        self._is_fit_validation = False
        self._marked = (0, 0)  # losses and calls of which it is known what the batch gave
        self.layers = LayerWatch(self.seen, self._fail)
        self.updates = UpdateWatch(self.seen, self.layers, self._fail)
        self.functions = FunctionWatch(self.seen, self.layers, self._fail)
        self._watches = looks and _can_be_watched(trainer, self.seen.settings)
        if looks:
            self._begin_fit()

    @_guarded
    def _begin_fit(self) -> None:
        """Know the module and its parameters before the first step."""
        module, trainer = self.seen.module, self._trainer
        self.updates.take_parameters()
        parameters, weights = list(module.parameters()), trainer.strategy.weights
        self.seen.own_weights = all(p.numel() and not weights.is_sharded(p) for p in parameters)
        if self.seen.own_weights:
            optimized = (p for one in trainer.optimizers for p in parameters_of(one))
            self.functions.known = {id(p) for p in (*parameters, *optimized)}
        self.seen.asleep = {name for name, part in module.named_modules() if not part.training}
        self.seen.fits = _count_fit(trainer)
        self.seen.monitors = list(monitors_of(trainer))

    def _fail(self, error: Exception) -> None:
        if self.looks:
            kind = f"{type(error).__name__}: {error}"
            self._trainer.log_line(f"checks end here, by an error of their own: {kind}", console=False)
        # What watches the step goes at its end: a hook that is removed while it runs would end the run.
        self.looks = self.notes_more = False

    @_guarded
    def begin_step(self, number: int, batches: list[Any]) -> None:
        """Before a step of the fit, counted from 1."""
        self.seen.step = number - 1
        self.updates.look_at_states(number)
        if number <= _UPDATES or number in _WATCHED:
            self.updates.begin("train")
        if number <= _BUFFERS:
            self._buffers = _buffers_of(self.seen.module)
        if number <= _BATCHES:
            known = frozenset(self.functions.targets)
            noted = self.seen.batches.setdefault("train", [])
            for batch in batches:
                light = number > _UPDATES
                noted.append(batch_facts(batch, number, known, light, self._trainer.epoch))
        if number in _WATCHED and self._watches:
            self.seen.watched.add(number)
            self.layers.begin("train")
            self.functions.begin("train", number, batches)

    @_guarded
    def end_step(self, number: int) -> None:
        """After a step of the fit."""
        self.functions.end()
        self.layers.end()
        self.updates.end()
        if not self.looks:
            self.close()
            return
        self.seen.step = number
        if number <= _UPDATES:
            self.updates.compare_with_first()
            self._note_norm()
        if number in self.seen.watched:
            losses = self._trainer.loop.step_facts().losses
            self.seen.step_losses[number] = [float(loss) for loss, _ in losses]
        self.seen.epoch_ended |= number >= (self._trainer.steps_per_epoch or math.inf)
        if number <= _BUFFERS:
            self._compare_buffers("train")
        new = self._logged() - self.seen.logged.get("val", set())
        self.seen.logged.setdefault("train", set()).update(new)
        if number == 1:
            self.seen.logged_first = new
        self.notes_more = number < self.NOTED[-1]

    @_guarded
    def begin_validation(self, sanity: bool) -> None:
        """Before a validation of the fit."""
        if not self.looks:
            return
        self.in_validation, self._is_fit_validation = True, not sanity
        self._marked = (len(self.seen.losses), len(self.seen.calls))
        self.updates.begin("val")
        if sanity and self._watches:  # of which nothing is kept: watched layers may compute otherwise
            self.layers.begin("val")
            self.functions.begin("val", self.seen.step, ())
        if not sanity:
            self.seen.batches["val"] = []

    @_guarded
    def note_validation_batch(self, batch: Any, number: int) -> None:
        """After a batch of a validation."""
        if self.in_validation and self.looks and number < _EVALUATION_BATCHES:
            self._note_batch("val", batch, number)
            if number == 0 and self._is_fit_validation:
                for name, value in numbers_of(self.seen.module).items():
                    self.seen.counts.setdefault(name, []).append(value)
            if 0 < number <= _BUFFERS:
                self._compare_buffers("val")
            if number < _BUFFERS:
                self._buffers = _buffers_of(self.seen.module)
            for name, part in self.seen.module.named_modules():
                if part.training:
                    facts = self.seen.layers.setdefault(name, LayerFacts())
                    facts.modes.setdefault("val", set()).add(True)

    @_guarded
    def end_validation(self, sanity: bool) -> None:
        """After a validation of the fit."""
        self.functions.end()
        self.layers.end()
        self.updates.end()
        noted, self.in_validation = self.in_validation, False
        if noted and not sanity and self.looks:
            new = self._logged() - self.seen.logged.get("train", set())
            self.seen.logged.setdefault("val", set()).update(new)
            self.seen.totals.append(numbers_of(self.seen.module))
            metrics = self._trainer.metrics
            self.seen.values.append({name: metrics[name] for name in self.seen.logged["val"]})

    def _note_norm(self) -> None:
        """The norm of the step's gradients before they were clipped."""
        norm = self._trainer.loop.step_facts().gradient_norm
        if norm is not None:
            self.seen.norms.append(float(norm))

    def _compare_buffers(self, phase: Phase) -> None:
        """Note buffers that have changed since they were looked at."""
        new = _buffers_of(self.seen.module)
        same = {n: old for n, old in self._buffers.items() if n in new and old.shape == new[n].shape}
        changed = {name for name, old in same.items() if not torch.equal(old, new[name])}
        self.seen.changed_buffers.setdefault(phase, set()).update(changed)
        self._buffers = {}

    def _logged(self) -> set[str]:
        ours = ("perf/", "lr/")
        return {n for n in self._trainer.metrics if n not in self._restored and not n.startswith(ours)}

    @_guarded
    def note_test_batch(self, batch: Any, number: int) -> None:
        """After a batch of a test."""
        if self.looks and number < _EVALUATION_BATCHES:
            self._note_batch("test", batch, number)

    @_guarded
    def _note_batch(self, phase: Phase, batch: Any, number: int) -> None:
        noted = self.seen.batches.setdefault(phase, [])
        known = frozenset(self.functions.targets)
        with self.layers.taking_notes():
            noted.append(batch_facts(batch, number, known, light=number >= _UPDATES))
        self._mark(batch)
        self.functions.take_batch(())

    def _mark(self, batch: Any) -> None:
        """Say of what a validation or test step has called which tensors are those of its batch."""
        lies = {memory_of(one) for _, one in tensors_in(batch)} - {0}
        losses, calls = self.seen.losses[self._marked[0] :], self.seen.calls[self._marked[1] :]
        facts = [one for loss in losses for one in (loss.output, loss.target)]
        for one in (*facts, *(given for call in calls for given in call.inputs)):
            one.from_batch = one.memory in lies
        self._marked = (len(self.seen.losses), len(self.seen.calls))

    @_guarded
    def end_fit(self) -> None:
        """After the last step."""
        if self.looks:
            self.seen.epoch_ended = True
            self.updates.compare_with_first(frozen=True)

    def close(self) -> None:
        """Watch nothing any more."""
        self.notes_more = self.in_validation = False
        self.functions.close()
        self.layers.end()
        self.updates.close()


def _buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies of some values of its buffers of several numbers."""
    return {
        name: one.detach().reshape(-1)[:_BUFFER_VALUES].clone()
        for name, one in module.named_buffers()
        if one.numel() > 1 and one.dtype.is_floating_point and is_readable(one)
    }


def _count_fit(trainer: TrainerView) -> int:
    """How many fits like this one came before: of the same module, data and trained weights."""
    data = trainer.loop.data.get("train")
    if trainer.global_step:
        _FITS.pop(trainer.module, None)
        return 0
    trained = [name for name, one in trainer.module.named_parameters() if one.requires_grad]
    rates = [group.get("lr") for one in trainer.optimizers for group in one.param_groups]
    kind = f"{id(data)} {trained} {rates}"
    before, count = _FITS.get(trainer.module, ("", -1))
    count = count + 1 if before == kind else 0
    _FITS[trainer.module] = (kind, count)
    return count


def _can_be_watched(trainer: TrainerView, settings: dict[str, Any]) -> bool:
    """Whether watching leaves what is computed as it is."""
    if settings.get("compile"):
        return False
    parts = list(trainer.module.modules())
    if any(hasattr(part, "_orig_mod") for part in parts):
        return False
    # In eval mode these compute in another way where anybody watches them.
    fused = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)
    return not any(isinstance(part, fused) and not part.training for part in parts)
