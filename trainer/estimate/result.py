"""What an estimate found: a row for each strategy, which fit, and the one to take."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from .findings import Findings
from .picture import draw_estimate
from .table import decision, shown_bytes, table


class Estimate(Findings):
    """What ``estimate`` returns; ``str`` of it is a table, with the decision and the assumptions.

    Its values are those of ``Findings``: ``rows``, ``fits``, ``devices``, ``memory`` ...

    Example:
        >>> from paceline.tools import estimate
        >>> found = estimate(trainer, Net(), train_loader)
        >>> found.recommended, "single" in found.fits
        ('single', True)
    """

    @property
    def decision(self) -> tuple[str, ...]:
        """In words: each simpler strategy and why it was rejected, then the one to take."""
        return tuple(line for _, line in decision(self))

    @property
    def recommended(self) -> str | None:
        """The first strategy of ``order`` that fits and uses all devices; None where there is none."""
        return next((name for name, _ in decision(self) if name is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, sizes in bytes and times in seconds."""
        rows = []
        for row in self.rows:
            found = asdict(row)
            found["bytes"]["total"] = row.bytes.total
            if row.time is not None:
                found["time"] |= {
                    "seconds": row.time.seconds,
                    "communication_share": row.time.communication_share,
                }
            rows.append(found)
        about = {k: v for k, v in vars(self).items() if k not in ("rows", "assumed")}
        return about | {
            "rows": rows,
            "fits": list(self.fits),
            "recommended": self.recommended,
            "decision": list(self.decision),
            "assumed": None if self.assumed is None else asdict(self.assumed),
        }

    def __str__(self) -> str:
        return "\n".join(table(self))

    def draw(self, path: str | Path) -> None:
        """Draw each strategy's bytes as a stacked bar, with the memory as a line, into a PNG.

        Args:
            path: The file; its folder is made if it does not exist.
        """
        title = f"{self.module} on {self.devices} x {self.device}, {shown_bytes(self.memory)} each"
        draw_estimate(path, title, self)
