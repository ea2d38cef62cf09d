"""What was seen of a run: plain facts, from which the checks judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

Phase = Literal["train", "val", "test"]


@dataclass
class TensorFacts:
    """A tensor at the time it was seen.

    Attributes:
        shape: Its sizes.
        dtype: Its type, as in ``"float32"``.
        requires_grad: Whether a gradient would flow through it.
        made_by: The name of the autograd node that made it, without its number: ``"Softmax"``; "" for none.
        minimum, maximum, mean, std: Of its values; 0 for an empty tensor.
        whole: Whether all its values are whole numbers.
        rows_alike: Whether it has several rows, and all are equal to within rounding.
        sums_to_one: Whether it is at least 0 and sums to 1 over axis 1 (of a vector: over axis 0).
        from_batch: Whether it is a tensor of the batch, or shares its memory.
        sample: The first values, at most 4096, on the CPU.
        origin: As ``made_by``, of the last node that did more than change the shape.
        memory: Where its values lie; the same for its views.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    made_by: str
    minimum: float
    maximum: float
    mean: float
    std: float
    whole: bool
    rows_alike: bool
    sums_to_one: bool
    from_batch: bool
    sample: Tensor
    origin: str = ""
    memory: int = 0


@dataclass
class LossCall:
    """A call of a loss of ``torch.nn.functional``, as ``nn.CrossEntropyLoss`` makes it too.

    Attributes:
        function: ``"cross_entropy"``.
        layer: The dotted name of the innermost submodule that called it; "" in the step itself.
        phase, step: Of the run; the step counts from 1.
        output, target: Its first and second argument.
        options: Its other arguments by name, as they were given; of a tensor its shape.
        value: What it returned, where that is one number.
    """

    function: str
    layer: str
    phase: Phase
    step: int
    output: TensorFacts
    target: TensorFacts
    options: dict[str, Any]
    value: float | None


@dataclass
class FunctionCall:
    """A call of another function that may show a mistake: a reshape, a dropout, a comparison, a softmax.

    Attributes:
        function: Its name in torch, such as ``"reshape"``, ``"dropout"`` or ``"sub"``.
        layer, phase, step: As of a ``LossCall``.
        inputs: The tensors among its first arguments.
        result: What it returned, where that is a tensor.
        options: Its arguments that are no tensors, by name, or by position as ``"1"``;
            ``"line"`` is the source of the call, of a dropout that is active in eval mode.
        training: The mode of the submodule that called it.
    """

    function: str
    layer: str
    phase: Phase
    step: int
    inputs: list[TensorFacts]
    result: TensorFacts | None
    options: dict[str, Any]
    training: bool


@dataclass
class UnitFacts:
    """The units of a ReLU, over all watched steps.

    Attributes:
        count: How many there are: features, or channels.
        dead: Which of them were 0 for every sample and position, a bool for each.
        samples: The rows that were seen.
        step: The last step in which it was seen.
        dead_now: Which of them were 0 for all rows of that step; None where the input was 0 itself.
    """

    count: int
    dead: Tensor
    samples: int
    step: int
    dead_now: Tensor | None = None


@dataclass
class LayerFacts:
    """A submodule, over the watched steps.

    Attributes:
        calls: In training steps, and in validation.
        calls_with_grad: Of those in training steps.
        modes: Its train mode (True) or eval mode (False) when it was called, by phase.
        first_input: Its first tensor argument in a training step.
        output: What it returned in the last watched training step, where that is a tensor.
        order: At which place of the forward pass it was first called, from 0.
        values_per_channel: Of a batch norm: the most values of a channel in a training step; 0 if unknown.
        rows: Of a batch norm: the most rows of its input in a training step.
        fed_by: The layers whose output it got, as it was.
    """

    calls: dict[Phase, int] = field(default_factory=dict)
    calls_with_grad: int = 0
    modes: dict[Phase, set[bool]] = field(default_factory=dict)
    first_input: TensorFacts | None = None
    output: TensorFacts | None = None
    order: int = -1
    values_per_channel: int = 0
    rows: int = 0
    fed_by: set[str] = field(default_factory=set)


@dataclass
class ParameterFacts:
    """A parameter of the module, over the first ten updates.

    Attributes:
        parameter: Itself.
        optimized: Whether an optimizer of the run has it.
        updates: Updates that were seen of an optimizer that has it; of the run where none has it.
        gradients: Those at which it had a gradient.
        nonzero: Those at which any of it was not 0.
        alignment: The cosine between the gradient and the parameter itself at each update.
        gradient_norms: The 2-norm of its gradient at each update, clipped; 0 without one.
        relative: Its change over its size at each update, on a sample of its values.
        size_left: The size of the sample at the end of the fit over that at its beginning.
        changed: Whether any of the sample has changed since the fit began.
    """

    parameter: nn.Parameter
    optimized: bool
    updates: int = 0
    gradients: int = 0
    nonzero: int = 0
    gradient_norms: list[float] = field(default_factory=list)
    alignment: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    size_left: float = 1.0
    changed: bool = False


@dataclass
class UpdateFacts:
    """A call of an optimizer's ``step`` in the first ten steps, or in a validation.

    Attributes:
        optimizer: Whose.
        phase, step: When.
        rates: The learning rate of each parameter group.
        norm: The 2-norm of all its gradients as the optimizer got them.
        count: How many numbers these have.
        stale: Whether gradients were in it that an update was made with before: nobody had zeroed them.
        emptied: Whether the optimizer had lost its state since its last update.
    """

    optimizer: Any
    phase: Phase
    step: int
    rates: list[float]
    norm: float
    count: int = 0
    stale: bool = False
    emptied: bool = False


@dataclass
class BatchFacts:
    """A batch.

    Attributes:
        step: Of the run, or the number of the batch in a validation.
        inputs, targets: Its tensors by their place: ``"0"``, ``"image"``.
        rows: A checksum of each sample, of all its tensors; empty where the batch has none with rows.
        epoch: Of the run; 0 in a validation.
        tensors: How many it has.
        targets_known: Whether a loss took its targets as such, or their names tell.
        distinct: Whether equal samples are no chance: they have several numbers that are not whole.
    """

    step: int
    inputs: dict[str, TensorFacts]
    targets: dict[str, TensorFacts]
    rows: list[int]
    epoch: int = 0
    tensors: int = 0
    targets_known: bool = False
    distinct: bool = False


@dataclass
class Stranger:
    """A trainable tensor that a step computes with, and neither the module nor an optimizer had at first.

    Attributes:
        parameter: Gives it; None where it is gone, as a plain tensor may be.
        is_parameter: Whether it is an ``nn.Parameter``.
        layer: Where it was used.
        steps: In which steps.
        first: Some of its values when it was first met.
        has_gradient: Whether it had a gradient at an update.
        changed: Whether its values were other ones at a later update.
    """

    parameter: Callable[[], Tensor | None]
    is_parameter: bool
    layer: str
    steps: set[int]
    first: Tensor
    has_gradient: bool = False
    changed: bool = False


@dataclass
class Seen:
    """What was seen of a fit so far.

    Attributes:
        trainer: Of the run: its module, optimizers, schedulers, callbacks, metrics and settings.
        step: Optimizer steps that are done.
        settings: The Trainer's arguments, as config.yaml has them.
        losses: Calls of losses in watched steps and in the sanity validation.
        calls: Calls of other functions there.
        units: ReLUs by the name of their layer, or of the layer that called the function and the number of
            its call in it.
        layers: Submodules by their dotted name; those that were never called are missing.
        parameters: By name.
        updates: Of optimizers.
        batches: By phase: training batches of the first 50 steps; those of the first validation, and of a
            test.
        strangers: Parameters from outside.
        logged: Full names of metrics that training steps have logged, and validations, by phase.
        own_weights: Whether steps compute with the parameters of the module themselves. Else parts lie on
            several ranks, and a check, which runs on one, must not read their values.
        logged_first: Those that the first step has logged, before anything else could.
        watched: Steps whose functions and layers were watched; none where they cannot be.
        values: Metrics of each validation of the fit, in order.
        asleep: Submodules that were in eval mode before the first step.
        step_losses: What the training steps returned, by watched step: one number for each micro-batch.
        first_epoch: The epoch in which the fit began.
        epoch_ended: Whether an epoch of it is done.
        norms: The norm of the gradients before the Trainer clipped them, of the first steps.
        emptied: Steps before which an optimizer had lost its state.
        changed_buffers: Names of buffers that training steps have changed, and validation steps, by phase.
        monitors: Who watches which value, and which way it takes for better.
        counts: Numbers and lengths of lists among the module's attributes, after the first batch of each
            validation, by name.
        totals: Those numbers at the end of each validation.
        fits: How often the module was trained before by a fit with the same data, from the start.
    """

    trainer: TrainerView
    step: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    losses: list[LossCall] = field(default_factory=list)
    calls: list[FunctionCall] = field(default_factory=list)
    units: dict[str, UnitFacts] = field(default_factory=dict)
    layers: dict[str, LayerFacts] = field(default_factory=dict)
    parameters: dict[str, ParameterFacts] = field(default_factory=dict)
    updates: list[UpdateFacts] = field(default_factory=list)
    batches: dict[Phase, list[BatchFacts]] = field(default_factory=dict)
    strangers: list[Stranger] = field(default_factory=list)
    logged: dict[Phase, set[str]] = field(default_factory=dict)
    own_weights: bool = True
    logged_first: set[str] = field(default_factory=set)
    watched: set[int] = field(default_factory=set)
    values: list[dict[str, float]] = field(default_factory=list)
    asleep: set[str] = field(default_factory=set)
    step_losses: dict[int, list[float]] = field(default_factory=dict)
    first_epoch: int = 0
    epoch_ended: bool = False
    norms: list[float] = field(default_factory=list)
    emptied: list[int] = field(default_factory=list)
    changed_buffers: dict[Phase, set[str]] = field(default_factory=dict)
    monitors: list[tuple[str, str, str]] = field(default_factory=list)
    counts: dict[str, list[float]] = field(default_factory=dict)
    totals: list[dict[str, float]] = field(default_factory=list)
    fits: int = 0

    @property
    def module(self) -> nn.Module:
        """The module that is trained."""
        module: nn.Module = self.trainer.module
        return module

    @property
    def data(self) -> dict[str, Any]:
        """The dataloaders of the fit as they were given: ``"train"``, ``"val"`` or ``"val/NAME"``."""
        return self.trainer.loop.data

    def losses_in(self, phase: Phase = "train", *functions: str) -> Iterator[LossCall]:
        """The calls of losses of a phase; of some functions alone where they are named."""
        for loss in self.losses:
            if loss.phase == phase and (not functions or loss.function in functions):
                yield loss

    def calls_of(self, *functions: str, phase: Phase = "train") -> Iterator[FunctionCall]:
        """The calls of functions in a phase."""
        return (call for call in self.calls if call.phase == phase and call.function in functions)
