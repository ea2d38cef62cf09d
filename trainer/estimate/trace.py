"""Two steps of a module under fake tensors: the memory they take over time, and what they compute."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from ...errors import PacelineError
from ...schedules import RunLength
from ...strategies import Precision
from ...strategies.blocks.activations import Activations
from ...strategies.blocks.repeated_blocks import find_units, untied
from ...strategies.estimate.model_bytes import ModelBytes, Moment, Phase
from ...strategies.gradients.accumulation import WideAccumulation
from ...strategies.module_checks import refuse_sharded
from ...strategies.step_wrapper import Dispatch
from ..configured_optimizers import configured_by, read_configuration
from ..module import TrainModule
from ..rng import untouched
from ..utils.functions import positional_arguments
from ..utils.nested import count_samples, tensors_of
from . import fake_tensors as fake
from .caching_allocator import CachingAllocator
from .fake_copy import fake_batch, fake_module, meta_module
from .unit_watch import UnitWatch


@dataclass(frozen=True)
class Work:
    """What a step computes on one device.

    Args:
        flops: Of forward and backward: products, convolutions, attention.
        moved: Bytes that the other operations of forward and backward read and write.
        operations: How many of forward and backward there are that compute something.
        updated: Bytes that the optimizer reads and writes.
        samples: In a micro-batch.
        tokens: In a micro-batch: the elements of its first integer tensor of two dimensions or more.
    """

    flops: float
    moved: float
    operations: float
    updated: float
    samples: int
    tokens: int | None


@dataclass(frozen=True)
class Setting:
    """What a module is traced with.

    Args:
        device: It need not exist here.
        precision: The run's.
        dtype: What the module finds its parameters in.
        recompute: Compute activations of the repeated blocks again in backward, as a strategy's
            ``activation_checkpointing`` says.
        micro_batches: Those of a step.
        accelerated: Whether it stands for an accelerator, where torch updates all parameters in one pass.
    """

    device: torch.device
    precision: Precision
    dtype: torch.dtype
    recompute: bool | str = False
    micro_batches: int = 1
    accelerated: bool = False


def trace_step(
    module: TrainModule, batch: Any, setting: Setting, trainer: Any = None
) -> tuple[ModelBytes, Work]:
    """The bytes of a module and its second step over time, and what that step computes.

    Args:
        module: Stays as it is.
        batch: A micro-batch, of real or fake tensors.
        setting: Where and how.
        trainer: What the module finds as ``self.trainer``.

    Raises:
        PacelineError: for what cannot be traced: manual optimization, a step that reads values.
    """
    if not module.automatic_optimization:
        raise PacelineError(
            "an estimate needs automatic optimization: it goes through the step itself",
            code="estimate-not-possible",
            where=type(module).__name__,
            got="automatic_optimization = False",
            fix="a module with the same model, whose training_step returns the loss",
        )
    refuse_sharded(module)
    made, kept = meta_module(module, setting.precision, setting.dtype)
    with untouched(torch.device("cpu")), fake.fake_mode():  # random and numpy draw here too
        try:
            return _Tracing(fake_module(made, setting.device), kept, batch, setting, trainer).run()
        except fake.VALUE_NEEDED as error:
            raise PacelineError(
                "an estimate runs the step without values, and this step reads one",
                code="estimate-not-possible",
                where=type(module).__name__,
                got=str(error).splitlines()[0],
                fix="no .item(), no float(tensor) and no `if tensor` in training_step",
            ) from error


class _Tracing:
    def __init__(self, made: TrainModule, kept: int, batch: Any, setting: Setting, trainer: Any) -> None:
        self.setting = setting
        device, precision = setting.device, setting.precision
        vars(made)["_trainer"] = trainer
        self.module = made
        self.optimizer = _optimizer_of(made, trainer, setting.accelerated)
        inputs = setting.dtype if setting.dtype != precision.param_dtype else precision.input_dtype
        self.batch = fake_batch(batch, device, inputs)
        computed = sum(p.numel() * p.element_size() for p in made.parameters())
        self.ratio = computed / kept if kept else 1.0
        Activations(made, setting.recompute)
        self.sums = WideAccumulation(made, precision.accumulate_dtype)
        self.units = untied(made, find_units(made))
        self.wrapper = Dispatch(made, precision.context(device))
        arguments = (self.batch, 0)
        self.arguments = arguments[: max(1, min(2, positional_arguments(made.training_step)))]
        self.watch = UnitWatch(made, self.units)
        self.account = fake.Account(self.seen)
        self.phase: Phase = "forward"
        self.moments: list[Moment] = []
        self.state = 0
        self.allocator = CachingAllocator()
        for tensor in made.parameters():
            self.allocator.see(tensor)

    def run(self) -> tuple[ModelBytes, Work]:
        """Both steps, then one that counts."""
        present = [self.wrapper, self.optimizer, *tensors_of(self.batch)]
        with self.account.open(*present):
            self.step(self.account.new_pass)
            self.state = self.account.bytes().get(fake.OPTIMIZER, 0)
            self.moments.clear()
            self.step(self.account.new_pass)
        model = self.model_bytes()
        self.watch.close()
        return model, self.work()

    def step(self, new_pass: Any, counting: Any = None) -> None:
        """A step: its micro-batches, and the update."""
        counting = counting or nullcontext()
        self.optimizer.zero_grad()
        several = self.setting.micro_batches > 1
        if several:
            self.sums.begin()
        with counting:
            for _ in range(1 + several):
                new_pass()
                self.watch.new_pass()
                self.phase = "forward"
                loss = _loss_of(self.wrapper("training_step", *self.arguments))
                self.phase = "backward"
                loss.backward()
                del loss
        self.phase = "reduce"
        self.note()
        self.sums.finish()
        self.phase = "update"
        self.optimizer.step()
        self.note()
        self.optimizer.zero_grad()

    def seen(self, func: Any, arguments: Any, result: Any) -> None:
        """An operation was done."""
        for tensor in tensors_of(result):
            self.allocator.see(tensor)
        self.note()

    def note(self) -> None:
        """Keep this instant, where no other has at least as much of everything."""
        found = self.account.bytes()
        known = found.get(fake.PARAMETERS, 0) + found.get(fake.BUFFERS, 0) + found.get(fake.GRADIENTS, 0)
        state, updating = found.get(fake.OPTIMIZER, 0), self.phase == "update"
        activations = found.get(fake.TOTAL, 0) - known - state
        gradients = found.get(fake.GRADIENTS, 0)
        new = Moment(
            phase=self.phase,
            activations=activations,
            gradients=gradients,
            finished=gradients if updating else self.watch.finished,
            unit=self.watch.unit,
            inside=self.watch.inside,
            temporaries=state - self.state if updating else 0,
        )
        if updating:
            new = replace(new, temporaries=max(0, new.temporaries))
        last = self.moments[-1] if self.moments else None
        if last is not None and _place(last) == _place(new):
            if last.activations + last.temporaries >= new.activations + new.temporaries:
                return
            self.moments.pop()
        self.moments.append(new)

    def model_bytes(self) -> ModelBytes:
        """What was seen in the second step."""
        parameters = list(self.module.parameters())
        sizes = [p.numel() * _size_as_kept(p, self.setting) for p in parameters]
        trained = [s for p, s in zip(parameters, sizes, strict=True) if p.requires_grad]
        groups = self.optimizer.param_groups
        scale = sum(sizes) / max(1, sum(p.numel() * p.element_size() for p in parameters))
        return ModelBytes(
            parameters=sum(sizes),
            trained=sum(trained),
            numbers=sum(p.numel() for p in parameters if p.requires_grad),
            all_numbers=sum(p.numel() for p in parameters),
            optimizer=int(self.state * scale),
            buffers=sum(b.numel() * b.element_size() for b in self.module.buffers()),
            units=tuple(
                sum(p.numel() * _size_as_kept(p, self.setting) for p in unit.parameters())
                for unit in self.units
            ),
            largest=max(trained, default=0),
            largest_group=max(sum(p.numel() * p.element_size() for p in g["params"]) for g in groups),
            sizes=tuple(sizes),
            at_once=any(group.get("foreach") or group.get("fused") for group in groups),
            compute_ratio=self.ratio,
            micro_batches=self.setting.micro_batches,
            fragments=self.allocator.fragments,
            moments=tuple(self.moments),
        )

    def work(self) -> Work:
        """A third step, of which products and the bytes of all other operations are counted."""
        counter = FlopCounterMode(display=False, custom_mapping=fake.ATTENTION)
        moved: dict[Phase, float] = {}
        by_operation: dict[Any, float] = {}
        computed = 0

        def seen(func: Any, arguments: Any, result: Any) -> None:
            nonlocal computed
            size = _bytes_moved(func, arguments, result)
            moved[self.phase] = moved.get(self.phase, 0) + size
            if self.phase != "update":
                packet = func.overloadpacket
                by_operation[packet] = by_operation.get(packet, 0) + size
                computed += size > 0

        with fake.AfterEach(seen):
            self.step(lambda: None, counter)
        counted = counter.get_flop_counts().get("Global", {})
        passes = min(self.setting.micro_batches, 2)
        micro = self.setting.micro_batches / passes
        return Work(
            flops=counter.get_total_flops() * micro,
            moved=sum(size for name, size in by_operation.items() if name not in counted) * micro,
            operations=computed * micro,
            updated=moved.get("update", 0),
            samples=count_samples(self.batch),
            tokens=_tokens_of(self.batch),
        )


def _place(moment: Moment) -> Any:
    return moment.phase, moment.unit, moment.inside, moment.gradients, moment.finished


def _optimizer_of(module: TrainModule, trainer: Any, accelerated: bool) -> Optimizer:
    length = RunLength(getattr(trainer, "total_steps", None) or 1000, 100)
    found = read_configuration(module, configured_by(module), True, length).optimizers[0]
    for group in found.param_groups:
        # torch takes the one pass over all parameters for its own tensors alone, not for fake ones.
        if accelerated and not group.get("fused") and "foreach" in group and group["foreach"] is None:
            group["foreach"] = True
    return found


def _size_as_kept(parameter: Tensor, setting: Setting) -> int:
    """The bytes of one number as it is kept and updated."""
    if not parameter.is_floating_point() or setting.dtype == setting.precision.param_dtype:
        return parameter.element_size()
    return setting.precision.param_dtype.itemsize


def _loss_of(output: Any) -> Tensor:
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise PacelineError(
            "training_step returned no loss that can be trained on",
            code="loss-not-usable",
            got=type(loss).__name__,
            allowed="a Tensor, or a mapping with 'loss'",
        )
    return loss


def _bytes_moved(func: Any, arguments: Any, result: Any) -> float:
    """What an operation reads and writes; a view moves nothing."""
    made = tensors_of(result)
    if (not made and result is not None) or func.is_view or func.overloadpacket in fake.MOVE_NOTHING:
        return 0.0
    return float(sum(t.numel() * t.element_size() for t in (*tensors_of(arguments), *made)))


def _tokens_of(batch: Any) -> int | None:
    whole = [t for t in tensors_of(batch) if not t.is_floating_point() and t.ndim > 1]
    return whole[0].numel() if whole else None
