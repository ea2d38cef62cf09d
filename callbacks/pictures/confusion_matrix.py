"""Which classes a classifier confuses: counted exactly, drawn as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .classification import Classification
from .picture import literal

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_MOST_NUMBERS = 20  # classes, up to which each cell has its number


class ConfusionMatrix(Classification):
    """Counts how often each class is predicted as which, and logs it as an image in a fit's validations.

    Each sample counts once, on any number of ranks. A target outside of the classes, such as an ignored
    -100, does not count. The logits are those of the step: nothing is computed again.

    Args:
        classes: How many, or their names.
        output: The dotted name of the submodule that returns logits of shape (samples, classes, ...).
        target: The classes of shape (samples, ...): a key or attribute of the batch, or a function of it.
        name: What is logged, ``val/confusion_matrix``.

    Attributes:
        matrix: The last counts, int64 of shape (classes, classes): of the row's class as the column's, on
            the CPU, the same on all ranks; None before the first.

    Raises:
        PacelineError: for arguments that are not right; in a run, where there is no such submodule or the
            shapes do not fit.

    Example:
        >>> class Sorts(TrainModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.head = nn.Linear(2, 2)
        ...     def validation_step(self, batch):
        ...         return nn.functional.cross_entropy(self.head(batch[0]), batch[1])
        >>> data = [(torch.eye(2), torch.tensor([0, 1]))]
        >>> confusion = ConfusionMatrix(["cat", "dog"], output="head")
        >>> values = Trainer(callbacks=confusion, progress=False, run_dir=None).validate(Sorts(), data)
        >>> confusion.matrix.sum()
        tensor(2)
    """

    def __init__(
        self,
        classes: int | Sequence[str],
        output: str,
        target: Callable[[Any], Any] | str | int = 1,
        name: str = "confusion_matrix",
    ) -> None:
        super().__init__(classes, output, target, name)
        self.matrix: Tensor | None = None
        self._counts: Tensor | None = None

    def start(self) -> None:
        self._counts = None

    def take(self, trainer: TrainerView, batch: Any, predicted: Tensor, target: Tensor) -> None:
        size, target = len(self.names), target.long()
        counts = (target >= 0) & (target < size)
        pairs = (target * size + predicted)[counts]
        found = torch.bincount(pairs, minlength=size * size)
        self._counts = found if self._counts is None else self._counts + found

    def finish(self, trainer: TrainerView) -> None:
        size = len(self.names)
        mine = torch.zeros(size * size, dtype=torch.int64) if self._counts is None else self._counts.cpu()
        everyone = trainer.ranks.gather_data(mine)
        self.matrix = torch.stack(everyone).sum(0).view(size, size)
        if trainer.is_global_zero and trainer.loop.is_fit_validation:
            trainer.module.log_image(self.log_name, draw(self.matrix, self.names))


def draw(matrix: Tensor, names: Sequence[str]) -> Any:
    """A matplotlib figure of counts, coloured by their share of the row.

    Args:
        matrix: Of shape (classes, classes); rows are the true classes.
        names: Of the classes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = len(names)
    side = min(3 + 0.35 * size, 12)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    share = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=1)
    correct = int(matrix.trace()) / max(1, int(matrix.sum()))
    axes.set_title(f"{int(matrix.sum())} samples, {correct:.1%} correct", fontsize=10)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if size <= _MOST_NUMBERS:
        names = [literal(name) for name in names]
        axes.set_xticks(range(size), names, rotation=45 if max(map(len, names)) > 2 else 0, ha="center")
        axes.set_yticks(range(size), names)
        for row in range(size):
            for column in range(size):
                if count := int(matrix[row, column]):
                    colour = "white" if share[row, column] > 0.5 else "black"
                    axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    return figure
