"""An estimate in words and columns."""

from __future__ import annotations

from collections.abc import Sequence

from ..utils.text import shown_seconds
from .findings import EstimateRow, Findings

PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "gathered": "gathered",
    "reducing": "reducing",
    "idle": "allocator",
}
"""The parts of a rank's bytes in the order in which they are shown."""


def shown_bytes(size: float) -> str:
    """A number of bytes in GiB, MiB or KiB.

    Example:
        >>> [shown_bytes(size) for size in (80 * 2**30, 3_000_000, 0)]
        ['80 GiB', '2.86 MiB', '0']
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            value = size / 1024**power
            return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{size:.0f} B" if size else "0"


def table(estimate: Findings) -> list[str]:
    """All lines: what is thought of, the columns, the decision, and what the times assume."""
    batches = f" x {estimate.micro_batches} micro-batches" if estimate.micro_batches > 1 else ""
    again = ", activations computed again" if estimate.recomputes else ""
    return [
        f"{estimate.module}: {estimate.parameters:,} parameters, precision {estimate.precision}, "
        f"{estimate.samples} samples{batches} on each of {estimate.devices} x {estimate.device}{again}",
        "",
        "Bytes on each device at the instant of the step when it holds most:",
        *_columns(_rows(estimate)),
        "",
        *(line for _, line in decision(estimate)),
        "",
        *_assumed(estimate),
    ]


def _rows(estimate: Findings) -> list[list[str]]:
    timed = any(row.time is not None for row in estimate.rows)
    hosted = any(row.bytes.host for row in estimate.rows)
    parts = _shown_parts(estimate)
    tokens = any(row.tokens_per_second is not None for row in estimate.rows)
    head = ["strategy", *(PARTS[part] for part in parts), "needed", "fits"]
    speed = "tokens/s" if tokens else "samples/s"
    head += ["host"] * hosted + ["step", speed, "MFU", "communication"] * timed
    rows = [head]
    for row in estimate.rows:
        cells = [row.strategy, *(shown_bytes(getattr(row.bytes, part)) for part in parts)]
        cells += [shown_bytes(row.needed), "yes" if row.fits else "no"]
        cells += [shown_bytes(row.bytes.host)] * hosted
        if timed:
            cells += _time(row)
        rows.append(cells)
    return rows


def _shown_parts(estimate: Findings) -> list[str]:
    """Those that are not 0 everywhere; what an allocator keeps, where it is part of what is needed."""
    every = [row.bytes for row in estimate.rows]
    reserved = [row.bytes for row in estimate.rows if row.needed > row.bytes.total]
    rows = {part: reserved if part == "idle" else every for part in PARTS}
    return [part for part in PARTS if any(getattr(one, part) for one in rows[part])]


def _time(row: EstimateRow) -> list[str]:
    if row.time is None:
        return ["", "", "", ""]
    speed = row.tokens_per_second or row.samples_per_second or 0.0
    return [
        shown_seconds(row.time.seconds),
        f"{speed:,.3g}" if speed < 1000 else f"{speed:,.0f}",
        f"{row.time.mfu:.0%}",
        f"{row.time.communication_share:.0%}",
    ]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return lines


def decision(estimate: Findings) -> list[tuple[str | None, str]]:
    """Each strategy of the order with a sentence, up to the first that serves; its name, else None."""
    limit = estimate.memory * estimate.limit
    found: list[tuple[str | None, str]] = []
    rows = {row.strategy: row for row in estimate.rows}
    for name in estimate.order:
        row = rows.get(name)
        if row is None:
            continue
        needs = f"it needs {shown_bytes(row.needed)} of {shown_bytes(limit)}"
        if row.fits and row.devices == estimate.devices:
            host = f", and {shown_bytes(row.bytes.host)} of the host for each" if row.bytes.host else ""
            return [*found, (name, f"{name}: recommended, {needs} on each device{host}")]
        if row.fits:
            why = f"it computes on one of {estimate.devices} devices"
        else:
            why = f"{needs}, {_largest(row)}"
        found.append((None, f"{name}: rejected, {why}"))
    return [*found, (None, _advice(estimate))]


def _largest(row: EstimateRow) -> str:
    parts = {name: getattr(row.bytes, part) for part, name in PARTS.items()}
    states = parts["parameters"] + parts["gradients"] + parts["optimizer"]
    return f"{shown_bytes(states)} of them states and {shown_bytes(parts['activations'])} activations"


def _advice(estimate: Findings) -> str:
    least = min(estimate.rows, key=lambda row: row.needed)
    if 2 * least.bytes.activations < least.needed:
        return "none fits: more devices, or ones with more memory"
    again = "" if estimate.recomputes else ", or a strategy with activation_checkpointing=True"
    return f"none fits, and most of it is activations: a smaller batch_size with accumulate{again}"


def _assumed(estimate: Findings) -> list[str]:
    lines = [
        f"Memory: the second step, traced without allocating, and formulas for ranks; a run may take "
        f"{estimate.limit:.0%} of {shown_bytes(estimate.memory)}."
    ]
    if estimate.assumed is None:
        return [*lines, 'Time: not modelled: the peak of the device is not known; gpu="H100" names one.']
    assumed = (f"  {one}" for one in estimate.assumed.lines())
    return [*lines, "Time: a model, no measurement. It assumes:", *assumed]
