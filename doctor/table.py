"""The findings as a table, with the cures below it, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .finding import FAILED, ORDER, SKIPPED, WARNING, Finding

_OTHERS = "-"


def worst(findings: Sequence[Finding]) -> str:
    """The worst outcome."""
    return max((one.outcome for one in findings), key=ORDER.index, default=ORDER[0])


def text(findings: Sequence[Finding], heading: str) -> str:
    """The table, the cures, and a line that sums up.

    Args:
        findings: In their order.
        heading: The first line.
    """
    strategies = list(dict.fromkeys(one.strategy for one in findings if one.strategy))
    of_machine = [one for one in findings if not one.strategy]
    rows = [("machine", "", "")] if of_machine else []
    lines = [heading, ""]
    rows = [(one.check, one.outcome, one.found) for one in of_machine]
    lines += _aligned([("the machine", "", ""), *rows])
    if strategies:
        checks = dict.fromkeys(one.check for one in findings if one.strategy)
        table = [("on ranks", *strategies, "")]
        for check in checks:
            cells = [one for one in findings if one.check == check and one.strategy]
            by_strategy = {one.strategy: one for one in cells}
            outcomes = [by_strategy[s].outcome if s in by_strategy else _OTHERS for s in strategies]
            shown = max(cells, key=lambda one: ORDER.index(one.outcome))
            table.append((check, *outcomes, shown.found))
        lines += ["", *_aligned(table)]
    lines += _cures(findings)
    return "\n".join([*lines, "", _sum(findings)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cures(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for outcome in (FAILED, WARNING):
        for one in findings:
            if one.outcome == outcome:
                where = f" ({one.strategy})" if one.strategy else ""
                lines += ["", f"{outcome}: {one.check}{where}: {one.found}"]
                lines += [f"  cure: {one.cure}"] if one.cure else []
                lines += [f"  {line}" for line in one.details]
    return lines


def _sum(findings: Sequence[Finding]) -> str:
    counts = {outcome: sum(one.outcome == outcome for one in findings) for outcome in ORDER}
    parts = [f"{counts[outcome]} {outcome}" for outcome in (FAILED, WARNING, SKIPPED) if counts[outcome]]
    return f"{len(findings)} checks: " + (", ".join(parts) if parts else "all ok")


def as_data(findings: Sequence[Finding], **more: Any) -> dict[str, Any]:
    """The findings as plain data.

    Args:
        findings: In their order.
        **more: Further keys: the number of ranks, say.
    """
    return {"ok": worst(findings) != FAILED, **more, "findings": [asdict(one) for one in findings]}
