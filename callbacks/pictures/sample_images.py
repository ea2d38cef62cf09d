"""The first samples of an evaluation as a picture, with their true and predicted classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...common.argument_checks import COUNT, check_arguments
from ...errors import PacelineError
from ..batches.batch_part import PART_OF_BATCH, part_of
from ..loggers.media import to_image
from .classification import Classification
from .picture import literal

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class SampleImages(Classification):
    """Logs a picture of the first samples in each validation of a fit, wrong predictions in red.

    The samples are those with the lowest indices in the dataset, the same on any number of ranks; of data
    without indices, such as a stream, the first ones of rank 0.

    Args:
        classes: How many, or their names.
        output: The dotted name of the submodule that returns logits of shape (samples, classes).
        target: The classes of shape (samples,): a key or attribute of the batch, or a function of it.
        image: The images of shape (samples, channels, height, width), in the same way. Each is scaled to
            its own smallest and largest value.
        count: How many samples.
        name: What is logged, ``val/samples``.

    Raises:
        PacelineError: for arguments that are not right; in a run, where there is no such submodule or the
            shapes do not fit.

    Example:
        >>> trainer = Trainer(callbacks=SampleImages(["cat", "dog"], output="head", count=9))
    """

    def __init__(
        self,
        classes: int | Sequence[str],
        output: str,
        target: Callable[[Any], Any] | str | int = 1,
        image: Callable[[Any], Any] | str | int = 0,
        count: int = 16,
        name: str = "samples",
    ) -> None:
        super().__init__(classes, output, target, name)
        check_arguments("SampleImages", image=(image, PART_OF_BATCH), count=(count, COUNT))
        self.image, self.count = image, count
        self._found: list[tuple[int, Tensor, int, int]] = []

    def start(self) -> None:
        self._found.clear()

    def take(self, trainer: TrainerView, batch: Any, predicted: Tensor, target: Tensor) -> None:
        images = part_of(batch, self.image)
        if not isinstance(images, Tensor) or images.ndim != 4 or predicted.ndim != 1:
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise PacelineError(
                "SampleImages needs images of shape (samples, channels, height, width), a class for each",
                code="wrong-shape",
                got=f"images {got}, classes {tuple(predicted.shape)}",
            )
        indices = trainer.loop.sample_indices
        if not all(type(index) is int for index in indices) or len(indices) != len(images):
            if not trainer.is_global_zero:
                return
            indices = list(range(len(self._found), len(self._found) + len(images)))
        last = self._found[-1][0] if len(self._found) == self.count else None
        wanted = [n for n, index in enumerate(indices) if last is None or index < last]
        wanted = sorted(wanted, key=lambda n: indices[n])[: self.count]
        for n in wanted:
            found = indices[n], images[n].float().cpu(), int(target[n]), int(predicted[n])
            self._found.append(found)
        self._found = sorted(self._found, key=lambda one: one[0])[: self.count]

    def finish(self, trainer: TrainerView) -> None:
        everyone = [one for rank in trainer.ranks.gather_data(self._found) for one in rank]
        self._found.clear()
        first = sorted(everyone, key=lambda one: one[0])[: self.count]
        if first and trainer.is_global_zero and trainer.loop.is_fit_validation:
            trainer.module.log_image(self.log_name, self._drawn(first))

    def _drawn(self, samples: list[tuple[int, Tensor, int, int]]) -> Any:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        across = min(len(samples), max(1, round((2 * len(samples)) ** 0.5)))
        down = -(-len(samples) // across)
        figure = Figure(figsize=(1.5 * across, 1.7 * down), layout="constrained", dpi=100)
        FigureCanvasAgg(figure)
        for axes in figure.subplots(down, across, squeeze=False).flat:
            axes.set_axis_off()
        for axes, (_, image, target, predicted) in zip(figure.axes, samples, strict=False):
            low, high = image.min(), image.max()
            axes.imshow(to_image((image - low) / (high - low).clamp(min=1e-12)).pixels)
            title = self._name(target)
            if predicted != target:
                title += f" → {self._name(predicted)}"
            axes.set_title(literal(title), fontsize=8, color="black" if predicted == target else "tab:red")
        return figure

    def _name(self, label: int) -> str:
        return self.names[label] if 0 <= label < len(self.names) else str(label)
