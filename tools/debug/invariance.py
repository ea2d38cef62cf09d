"""``check_invariance``: a few steps at two layouts, and the first tensor in which they differ.

Compared are, step by step: the batch, the output of each submodule in the order of the forward, the loss,
each parameter's gradient. Of each tensor a number per sample is kept, its product with a fixed pattern, so
that models of any size can be compared, and micro-batches and ranks be put together in the data's order.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ...callbacks import Callback
from ...common.argument_checks import ABOVE_ZERO_OR_NONE, COUNT, check_arguments
from ...errors import PacelineError
from ...strategies.launch.job_notes import uncaught_errors_shortened
from ...trainer.data.feed import Feed
from ...trainer.data.sources import as_datamodule
from ...trainer.on_ranks import on_ranks
from ...trainer.runtime.layout_sensitivity import stop_drawing
from ...trainer.trial import batch_size_of, run_trial, with_batch_size
from ...trainer.utils.nested import count_samples, first_tensor

if TYPE_CHECKING:
    from ...trainer.module import TrainModule
    from ...trainer.trainer import Trainer

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 5e-2
_FLOOR = 1e-3  # of the largest gradient: what is smaller may be rounding alone

# A tensor as one (product, norm) a row: a row for each sample, or one in all.
_Rows = list[tuple[float, float]]


@dataclass(frozen=True)
class Invariance:
    """What ``check_invariance`` found. It is true where both layouts gave the same.

    Attributes:
        layouts: The two that were run, in words.
        steps: Optimizer steps of each.
        difference: The first tensor that differs, by how much, and what may be done; None for none.
    """

    layouts: tuple[str, str]
    steps: int
    difference: str | None

    def __bool__(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        head = f"{self.steps} steps as {self.layouts[0]}, and {self.layouts[1]}"
        return f"{head}: {self.difference or 'all tensors are the same'}"


class _Recorder(Callback):
    """Keeps what each step computed, over all ranks and in the data's order."""

    def __init__(self) -> None:
        self.steps: list[dict[str, _Rows]] = []
        self._hooks: list[Any] = []
        self._batches: list[Any] = []
        self._mine: dict[str, list[_Rows]] = {}
        self._gradients: dict[str, _Rows] = {}
        self._calls: dict[tuple[str, int], int] = {}

    def on_fit_start(self, trainer: Any) -> None:
        def watch(name: str, part: nn.Module) -> None:
            def keep(part: nn.Module, args: Any, output: Any) -> None:
                self._keep(trainer, f"the output of {name} ({type(part).__name__})", output)

            self._hooks.append(part.register_forward_hook(keep))

        if trainer.strategy.collectives.tensor_parallel_size > 1:
            return  # of what is split a rank sees a part
        for name, part in trainer.module.named_modules():
            if name:
                watch(name, part)

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        self._batches = batches
        self._mine, self._gradients, self._calls = {}, {}, {}

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        own = self._batches[: len(outputs)]  # the others serve a rank without samples to compute with
        batches = [_rows(first_tensor(batch), count_samples(batch)) for batch in own]
        self._mine = {"the batch": batches} | self._mine

    def _keep(self, trainer: Any, what: str, output: Any) -> None:
        tensor = first_tensor(output)
        logger, batch_idx = trainer._fit.logger, trainer._fit.state.batch_idx
        size = logger.current.weight
        own = not logger.is_evaluating  # else this rank computes without a sample
        if own and tensor is not None and tensor.ndim and tensor.size(0) == size:
            call = self._calls.get((what, batch_idx), 0) + 1
            self._calls[what, batch_idx] = call
            name = what if call == 1 else f"{what}, called a {call}. time,"
            self._mine.setdefault(name, []).append(_rows(tensor, tensor.size(0)))

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        whole = trainer.strategy.weights.full_gradients(trainer.module)
        if not trainer.module.automatic_optimization:  # only its own have met over the ranks
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            named = trainer.module.named_parameters()
            whole = {name: whole[name] for name, p in named if name in whole and id(p) in held}
        for name, gradient in whole.items():
            self._gradients[f"the gradient of {name}"] = _rows(gradient, 1)

    def on_step_boundary(self, trainer: Any) -> None:
        everyone = trainer.ranks.gather_data(self._mine)
        step: dict[str, _Rows] = {}
        for what in self._mine:
            of_ranks = [rank.get(what, []) for rank in everyone]
            turns = range(max(map(len, of_ranks)))
            parts = [rank[turn] for turn in turns for rank in of_ranks if turn < len(rank)]
            step[what] = [row for part in parts for row in part]
        if "train/loss" in trainer.metrics:
            loss = trainer.metrics["train/loss"]
            step["the loss"] = [(loss, abs(loss))]
        self.steps.append(step | self._gradients)

    def on_teardown(self, trainer: Any, stage: str) -> None:
        for hook in self._hooks:
            hook.remove()


def _rows(tensor: Tensor | None, rows: int) -> _Rows:
    """The product of each row with a fixed pattern, and its norm."""
    if tensor is None or not rows:
        return []
    flat = tensor.detach().to("cpu", torch.float64).reshape(rows, -1)
    flat = flat.nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0)  # a mask's -inf is as good a value as any
    pattern = math.sqrt(2) * torch.cos(1 + math.sqrt(2) * torch.arange(flat.size(1), dtype=torch.float64))
    return list(zip((flat @ pattern).tolist(), flat.norm(dim=1).tolist(), strict=True))


@uncaught_errors_shortened()
@on_ranks
def check_invariance(
    trainer: Trainer,
    module: TrainModule,
    train_dataloader: Any = None,
    datamodule: Any = None,
    *,
    steps: int = 3,
    tolerance: float | None = None,
) -> Invariance:
    """Train copies of ``module`` for a few steps at two layouts; find the first tensor that differs.

    The second has micro-batches of half the size, on one device. Dropout is off; nothing is written.

    Args:
        trainer: Its arguments are the copy's; it stays as it is.
        module: Stays as it is.
        train_dataloader: The training data, as ``fit`` takes it.
        datamodule: A ``DataModule``, as ``fit`` takes it.
        steps: Optimizer steps at each layout.
        tolerance: Largest relative difference; None is 1e-4, 1e-9 in precision "64", 5e-2 in 16 bits.

    Returns:
        True where all is the same; as a string, what differs, by how much, and what to do about it.

    Raises:
        PacelineError: for data whose batches cannot be cut.

    Example:
        >>> from paceline.tools import check_invariance
        >>> bool(check_invariance(trainer, Net(), train_loader, steps=1))
        True
    """
    check_arguments("check_invariance", steps=(steps, COUNT), tolerance=(tolerance, ABOVE_ZERO_OR_NONE))
    dataloader, datamodule = as_datamodule(train_dataloader, datamodule)
    several = bool(trainer.world_size > 1 or trainer.strategy.environment.starts)
    manual = not module.automatic_optimization
    if manual and not several:
        raise PacelineError(
            "check_invariance on one device cuts micro-batches; under manual optimization a step is one",
            code="manual-optimization",
            fix="check it on two ranks: Trainer(devices=2)",
        )
    module = copy.deepcopy(module)
    for part in module.modules():
        stop_drawing(part)
    recorded, feed = _run(trainer, module, (dataloader, datamodule), steps)
    cut = _in_batches_of(feed.data, feed.step_size if manual else None)
    if cut is None and (manual or not several):
        raise PacelineError(
            "check_invariance takes batches of another size on one device, and this data's cannot be cut",
            code="batch-cannot-be-cut",
            got=type(feed.data).__name__,
            fix="a DataLoader with a batch_size from 2 on"
            + ("" if manual else "; or a Trainer with devices=2"),
        )
    size = {"global_batch_size": feed.step_size, "accumulate": 1}
    if feed.step_size is None:
        size["accumulate"] = feed.micro_batches * trainer.ranks.data_world_size
    again_data = (dataloader if cut is None else cut, datamodule)
    again, _ = _run(trainer, module, again_data, steps, size, alone=several)
    first = f"it is, on {trainer.world_size} ranks" if several else "it is"
    how = "in whole batches" if manual else "in micro-batches of half the size"
    second = ["on one device"] * several + [how] * (cut is not None)
    tolerance = tolerance or _TOLERANCES.get(trainer.strategy.precision.compute_dtype, _COARSE)
    found = trainer.ranks.broadcast(_first_difference(recorded, again, tolerance))
    result = Invariance((first, " ".join(second)), steps, found)
    trainer.log_line(f"check_invariance: {result}")
    return result


def _run(
    trainer: Any,
    module: Any,
    data: tuple[Any, Any],
    steps: int,
    like: dict[str, Any] | None = None,
    alone: bool = False,
) -> tuple[list[dict[str, _Rows]], Feed]:
    """Train a copy of the module for a few steps: what they computed, and what fed them.

    Args:
        trainer: The user's, whose arguments the copy is trained with.
        module: The user's module; a copy of it is trained.
        data: The training dataloader and the DataModule, as ``fit`` takes them.
        steps: Optimizer steps.
        like: ``global_batch_size`` and ``accumulate`` in place of the trainer's; None keeps those.
        alone: Train on this rank, as if there were no other.
    """
    recorder = _Recorder()
    run = run_trial(trainer, module, data, steps, recorder, alone=alone, **(like or {}))
    return recorder.steps, run._fit.feed


def _in_batches_of(loader: Any, size: int | None) -> DataLoader[Any] | None:
    """The loader with another batch size, half its own unless given; None where it cannot be had."""
    now = batch_size_of(loader)
    return None if now is None or now < 2 else with_batch_size(loader, size or -(-now // 2))


def _first_difference(
    first: list[dict[str, _Rows]], second: list[dict[str, _Rows]], tolerance: float
) -> str | None:
    for number, (ours, theirs) in enumerate(zip(first, second, strict=True), 1):
        gradients = [rows[0][1] for what, rows in ours.items() if what.startswith("the gradient")]
        for what, rows in ours.items():
            others = theirs.get(what, [])
            if what == "the batch" and len(others) != len(rows):
                return f"step {number} has {len(rows)} samples, and {len(others)}"
            if len(others) != len(rows):  # not one row a sample
                continue
            least = _FLOOR * max(gradients) if what.startswith("the gradient") else 0.0
            apart = [_apart(a, b, least) for a, b in zip(rows, others, strict=True)]
            sample = next((i for i, found in enumerate(apart) if not found <= tolerance), None)
            if sample is not None:
                where = f", first in sample {sample} of the step" if len(rows) > 1 else ""
                by = f"by {max(apart):.2g} of its size{where}"
                return f"in step {number} {what} differs, {by}. {_hint(what)}"
    return None


def _apart(ours: tuple[float, float], theirs: tuple[float, float], least: float) -> float:
    size = max(ours[1], theirs[1], least)
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / size if size else 0.0


def _hint(what: str) -> str:
    if what == "the batch":
        return (
            "The dataset or its collate function draws from what no seed reaches, or changes as it is "
            "read; or a batch hook draws, which depends on the micro-batch"
        )
    if what == "the loss":
        return (
            "A mean over anything but samples (tokens) needs its count returned as 'weight'; a loss that "
            "compares samples with each other depends on which are in a micro-batch"
        )
    if what.startswith("the gradient"):
        return "Something in the backward depends on the micro-batch: a hook, an autograd function"
    if "BatchNorm" in what:
        return (
            "A batch norm takes the statistics of a micro-batch: sync_batchnorm=True takes all ranks', and "
            "GroupNorm or LayerNorm none"
        )
    return "It mixes samples, draws, or depends on the rank or on how often it was called"
