"""Curves as a small SVG inside an HTML page: no script, no file beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from ...callbacks.loggers.series import Array, bucketed
from ...callbacks.pictures.panels import ends_of_y, shortened

_WIDTH, _HEIGHT = 460, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 22
_ACROSS = _WIDTH - _LEFT - _RIGHT


@dataclass(frozen=True)
class Curve:
    """A curve of a chart.

    Attributes:
        x: Ascending.
        y: As many values; a gap where one is not finite.
        color: As CSS has it.
        light: Thinner and paler: a curve that another one stands out from.
        dashed: As it says.
    """

    x: Array
    y: Array
    color: str
    light: bool = False
    dashed: bool = False


def chart(panel: str, curves: Sequence[Curve], most: int = 200) -> str:
    """An ``<svg>`` of curves over steps.

    Args:
        panel: Its title, which says whether the y axis begins at 0.
        curves: In the order of drawing.
        most: The points of a curve; longer ones are drawn as means.
    """
    drawn = [(curve, bucketed(curve.x, curve.y, most)) for curve in curves if len(curve.x)]
    values = [points.mean[np.isfinite(points.mean)] for _, points in drawn]
    finite = np.concatenate(values) if values else np.empty(0)
    head = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(panel)}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">'
    )
    if not len(finite):
        return f"{head}{_text(_WIDTH / 2, _HEIGHT / 2, 'middle', 'no finite value')}</svg>"
    bottom, top = ends_of_y(panel, float(finite.min()), float(finite.max()))
    first = min(float(points.x[0]) for _, points in drawn)
    last = max(float(points.x[-1]) for _, points in drawn)
    frame = _Frame(first, last if last > first else first + 1, bottom, top)
    parts = [head, *frame.grid(), *(frame.path(curve, points.x, points.mean) for curve, points in drawn)]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Frame:
    """The part of the plane that a chart shows."""

    first: float
    last: float
    bottom: float
    top: float

    def across(self, x: float) -> float:
        """Where a position is, from the left."""
        return _LEFT + (x - self.first) / (self.last - self.first) * _ACROSS

    def down(self, y: float) -> float:
        """Where a value is, from the top."""
        return _TOP + (self.top - y) / (self.top - self.bottom) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Iterator[str]:
        """Lines and numbers."""
        for y in ticks(self.bottom, self.top, 5):
            at = self.down(y)
            yield f'<path d="M{_LEFT} {at:.1f}h{_ACROSS}" stroke="currentColor" stroke-opacity=".15"/>'
            yield _text(_LEFT - 6, at + 4, "end", shortened(y))
        for x in ticks(self.first, self.last, 6):
            yield _text(self.across(x), _HEIGHT - 6, "middle", shortened(x))

    def path(self, curve: Curve, x: Array, y: Array) -> str:
        """A polyline; a point by itself is a dot."""
        found, pen = [], "M"
        for here, value in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(value):
                found.append(f"{pen}{self.across(here):.1f} {self.down(value):.1f}")
                pen = "L"
            else:
                pen = "M"
        if len(found) == 1:
            found.append("h0.01")
        dash = ' stroke-dasharray="4 3"' if curve.dashed else ""
        style = f'stroke-opacity=".55" stroke-width="1.4"{dash}' if curve.light else 'stroke-width="1.8"'
        ends = 'stroke-linecap="round" stroke-linejoin="round"'
        return f'<path d="{"".join(found)}" fill="none" stroke="{escape(curve.color)}" {style} {ends}/>'


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity=".75">{text}</text>'


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two ends, ``most`` of them at most.

    Example:
        >>> ticks(0.0, 1.0, 5)
        [0.0, 0.5, 1.0]
    """
    raw = (high - low) / max(most - 1, 1)
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * (1 - 1e-9))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
