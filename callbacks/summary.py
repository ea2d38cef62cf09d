"""A table of the module's parts and parameters at the start of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView

_ROWS = 24


class ModelSummary(Callback):
    """Prints name, type, parameters and whether they are trained, for the module's direct parts.

    Example:
        >>> trainer = Trainer(progress=False, callbacks=ModelSummary())  # the table without the bar
    """

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        self._table = parameter_table(trainer.module)  # later a rank may hold a part of it only

    def on_fit_start(self, trainer: TrainerView) -> None:
        if trainer.is_global_zero:
            trainer.log_line(self._table)


def parameter_table(module: nn.Module) -> str:
    """The table as text, at most 80 columns; shared parameters count once."""
    rows = [_row(name, part) for name, part in module.named_children()]
    own = list(module.parameters(recurse=False))
    if own:
        rows.append(("(own parameters)", "Parameter", sum(p.numel() for p in own), _trained(own)))
    if len(rows) > _ROWS:
        rows = [*rows[: _ROWS - 1], (f"... {len(rows) - _ROWS + 1} more", "", 0, "")]
    names = [r[0][:28] for r in rows]
    kinds = [r[1][:22] for r in rows]
    left = max([len(n) for n in names] + [4])
    middle = max([len(k) for k in kinds] + [4])
    lines = [f"{'part':<{left}}  {'type':<{middle}}  {'parameters':>13}  trained"]
    for name, kind, row in zip(names, kinds, rows, strict=True):
        lines.append(f"{name:<{left}}  {kind:<{middle}}  {row[2]:>13,}  {row[3]}")
    parameters = list(module.parameters())
    total = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    size = sum(p.numel() * p.element_size() for p in parameters) / 1e6
    lines.append(f"{total:,} parameters, {trained:,} trained, {size:,.1f} MB")
    return "\n".join(lines)


def _row(name: str, part: nn.Module) -> tuple[str, str, int, str]:
    parameters = list(part.parameters())
    count = sum(p.numel() for p in parameters)
    return name, type(part).__name__, count, _trained(parameters)


def _trained(parameters: list[nn.Parameter]) -> str:
    if not parameters:
        return "-"
    trained = sum(p.requires_grad for p in parameters)
    return "yes" if trained == len(parameters) else ("no" if not trained else "partly")
