"""Names other trainers use in calls of fit and validate, answered with ours."""

from __future__ import annotations

from typing import Any

from ...errors import PacelineError, nearest

_FIT_PEERS = {
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "weights": "resume",
    "train_dataloaders": "train_dataloader",
    "dataloader": "train_dataloader",
    "val_dataloaders": "val_dataloader",
    "eval_dataset": "val_dataloader",
    "model": "module, the first argument",
}
_EVALUATION_PEERS = {
    "ckpt_path": "weights",
    "resume": "weights",
    "dataloaders": "dataloader",
    "val_dataloader": "dataloader",
    "test_dataloader": "dataloader",
    "model": "module, the first argument",
}
_FIT_ARGUMENTS = ("train_dataloader", "val_dataloader", "datamodule", "resume", "allow")
_EVALUATION_ARGUMENTS = ("dataloader", "datamodule", "weights")


def refuse_unknown(method: str, unknown: dict[str, Any]) -> None:
    """Refuse arguments that are none, with the name that was meant.

    Raises:
        PacelineError: for the first of them.
    """
    peers = _FIT_PEERS if method == "fit" else _EVALUATION_PEERS
    known = _FIT_ARGUMENTS if method == "fit" else _EVALUATION_ARGUMENTS
    for name in unknown:
        ours = peers.get(name)
        raise PacelineError(
            f"{method} has no argument {name!r}",
            meant=None if ours else nearest(name, known),
            fix=f"it is called {ours} here" if ours else None,
        )
