"""What can be logged besides scalars: images, histograms, tables and texts, as plain data on the host."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import PacelineError

Cell = str | int | float | bool | None
_CHANNELS = (1, 3, 4)
_GAP = 2  # pixels between the images of a grid


@dataclass(frozen=True, eq=False)
class Image:
    """A picture.

    Attributes:
        pixels: uint8, of shape (height, width, channels), 3 channels or 4: red, green, blue, opacity.
        caption: A line that belongs to it.

    Example:
        >>> import numpy
        >>> Image(numpy.zeros((32, 48, 3), numpy.uint8)).nbytes
        4608
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    caption: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return self.pixels.nbytes

    def png(self) -> bytes:
        """The picture as a PNG file."""
        from PIL import Image as pillow

        file = io.BytesIO()
        pillow.fromarray(self.pixels).save(file, "png")
        return file.getvalue()


@dataclass(frozen=True)
class Histogram:
    """How many values lie between each two edges; those that are not finite are in no bin.

    Attributes:
        counts: One per bin.
        edges: Ascending, one more than there are bins; the last bin includes its upper edge.
        total, sum_of_squares: Of the finite values.
        not_finite: How many were NaN or infinite.

    Example:
        >>> sum(Histogram((2, 1), (1.0, 3.0, 5.0), total=8.0, sum_of_squares=30.0).counts)
        3
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    total: float
    sum_of_squares: float
    not_finite: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return 64 * len(self.edges)


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    Attributes:
        columns: Their names.
        rows: Strings, numbers, booleans or None, one per column.

    Example:
        >>> Table(("word", "count"), (("be", 2), ("or", 1))).rows[0]
        ('be', 2)
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return sum(64 + (len(cell) if isinstance(cell, str) else 0) for row in self.rows for cell in row)


@dataclass(frozen=True)
class Text:
    """A text, which loggers may show as Markdown.

    Example:
        >>> Text("to be, or not to be").nbytes
        19
    """

    text: str

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return len(self.text)


Media = Image | Histogram | Table | Text


def to_image(value: Any, caption: str = "") -> Image:
    """A picture of a tensor, an array, a matplotlib figure or a PIL image.

    Args:
        value: A tensor of shape (height, width), (channels, height, width) or, drawn as a grid,
            (images, channels, height, width); an array of (height, width), (height, width, channels) or
            (images, height, width, channels). 1, 3 or 4 channels. uint8 from 0 to 255, or floats from 0
            to 1; what lies outside is clipped, NaN is black. Or a figure or a PIL image.
        caption: A line that belongs to it.

    Raises:
        PacelineError: for anything else.

    Example:
        >>> to_image(torch.rand(8, 3, 32, 32)).pixels.shape  # 3 rows of 3
        (100, 100, 3)
    """
    if hasattr(value, "savefig"):
        value = _drawn(value)
    elif hasattr(value, "getbands"):  # a PIL image, of any mode
        value = np.asarray(value.convert("RGBA" if value.has_transparency_data else "RGB"))
    if isinstance(value, torch.Tensor):
        array = _channels_last(value.detach().cpu())
    else:
        try:
            array = np.asarray(value)
        except Exception:
            raise _no_image(type(value).__name__) from None
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim not in (3, 4) or array.shape[-1] not in _CHANNELS or not array.size:
        got = f"a {type(value).__name__}" + (
            f" of shape {tuple(getattr(value, 'shape', array.shape))}" if array.ndim else ""
        )
        raise _no_image(got)
    array = _as_bytes(array)
    if array.shape[-1] == 1:
        array = np.repeat(array, 3, axis=-1)
    return Image(np.ascontiguousarray(_grid(array) if array.ndim == 4 else array), str(caption))


def _channels_last(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    order = {3: (1, 2, 0), 4: (0, 2, 3, 1)}.get(tensor.ndim)
    return np.asarray(tensor if order is None else tensor.permute(order))


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if array.dtype == bool or array.dtype.kind == "f":
        array = np.rint(np.clip(np.nan_to_num(array.astype(np.float64), nan=0.0), 0, 1) * 255)
    elif array.dtype != np.uint8:
        raise _no_image(f"values of {array.dtype}")
    return array.astype(np.uint8)


def _grid(images: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    count, height, width, channels = images.shape
    across = int(np.ceil(np.sqrt(count)))
    down = -(-count // across)
    shape = (down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, channels)
    grid = np.full(shape, 255, dtype=np.uint8)
    for number, image in enumerate(images):
        y, x = number // across * (height + _GAP), number % across * (width + _GAP)
        grid[y : y + height, x : x + width] = image
    return grid


def _drawn(figure: Any) -> np.ndarray[Any, Any]:
    from PIL import Image as pillow

    file = io.BytesIO()
    figure.savefig(file, format="png")
    return np.asarray(pillow.open(file).convert("RGB"))


def _no_image(got: str) -> PacelineError:
    return PacelineError(
        "log_image: this is no image",
        code="not-loggable",
        got=got,
        allowed="a tensor (channels, height, width), an array (height, width, channels), a grid of them "
        "with a first dimension more, uint8 or floats from 0 to 1; a matplotlib figure; a PIL image",
    )


def to_histogram(values: Any, bins: int = 64) -> Histogram:
    """Count values in bins of one width, from the smallest to the largest finite one.

    Args:
        values: A tensor, an array or a sequence, of any shape; of a sharded tensor this rank's part.
        bins: How many.

    Raises:
        PacelineError: for anything else, and for fewer bins than one.

    Example:
        >>> to_histogram([1.0, 2.0, 2.0, 5.0, float("nan")], bins=4)
        Histogram(counts=(1, 2, 0, 1), edges=(1.0, 2.0, 3.0, 4.0, 5.0), total=10.0, sum_of_squares=34.0, not_finite=1)
    """  # noqa: E501
    if type(bins) is not int or not 1 <= bins <= 10_000:
        raise PacelineError(
            "log_histogram: bins is a number from 1 to 10,000", code="invalid-value", got=bins
        )
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach()
            if hasattr(values, "to_local"):  # a sharded one
                values = values.to_local()
            if values.is_complex():
                raise TypeError
            values = values.to_dense() if values.layout is not torch.strided else values
            values = values.to("cpu", torch.float64)
        elif np.iscomplexobj(values):
            raise TypeError
        flat = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError, RuntimeError):
        raise PacelineError(
            "log_histogram takes numbers",
            code="not-loggable",
            got=type(values).__name__,
            allowed="a tensor, an array, a list",
        ) from None
    finite = flat[np.isfinite(flat)]
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            counts, edges = np.histogram(finite, bins)
    except ValueError:  # too close together, or too far apart, for edges of that many bins
        ends = np.nextafter([finite.min(), finite.max()], [-np.inf, np.inf])
        counts, edges = np.array([finite.size]), np.clip(ends, -np.finfo(float).max, np.finfo(float).max)
    with np.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(finite @ finite)
    return Histogram(
        tuple(counts.tolist()),
        tuple(edges.tolist()),
        total,
        squares,
        flat.size - finite.size,
    )


def to_table(columns: Sequence[str], rows: Sequence[Any]) -> Table:
    """Rows of cells; numbers in tensors and arrays become plain ones, what else is no cell its text.

    Args:
        columns: Their names.
        rows: Each a sequence with one cell per column, or a mapping by name of the column.

    Raises:
        PacelineError: for a row with more or fewer cells than there are columns.

    Example:
        >>> to_table(["step", "text"], [(1, "a"), {"step": torch.tensor(2), "text": None}]).rows
        ((1, 'a'), (2, None))
    """
    names = tuple(str(name) for name in columns)
    made = []
    for number, row in enumerate(rows):
        cells = [row.get(name) for name in columns] if isinstance(row, Mapping) else list(row)
        if len(cells) != len(names):
            raise PacelineError(
                "log_table: each row has one cell per column",
                code="not-loggable",
                where=f"row {number}",
                got=f"{len(cells)} cells",
                allowed=f"{len(names)}: {', '.join(names)}",
            )
        made.append(tuple(_cell(cell) for cell in cells))
    return Table(names, tuple(made))


def _cell(value: Any) -> Cell:
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        try:
            value = value.item()
        except (RuntimeError, ValueError):
            return str(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def unique(names: Iterable[str]) -> list[str]:
    """Names of columns, for trackers that keep columns by name.

    Example:
        >>> unique(["a", "b", "a"])
        ['a', 'b', 'a (2)']
    """
    found: list[str] = []
    for name in names:
        number, new = 1, name
        while new in found:
            number += 1
            new = f"{name} ({number})"
        found.append(new)
    return found


def with_fewer_bins(histogram: Histogram, most: int) -> tuple[list[int], list[float]]:
    """Counts and edges, of neighbours together where there are more than ``most`` bins."""
    counts, edges = histogram.counts, histogram.edges
    size = -(-len(counts) // most)
    merged = [sum(counts[first : first + size]) for first in range(0, len(counts), size)]
    return merged, [*edges[:-1:size], edges[-1]]
