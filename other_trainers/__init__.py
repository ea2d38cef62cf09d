"""What the names of other trainers are called here: one table, of which each file has a page.

Names that are imported have one too, which ``imports.missing_name`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import arguments, attributes, engines

_TABLE: dict[str, Mapping[str, str]] = {
    **arguments.OF_CLASSES,
    "Trainer": arguments.OF_TRAINER,
    "fit": arguments.OF_FIT,
    "log": arguments.OF_LOG,
    **dict.fromkeys(("validate", "test", "predict"), arguments.OF_EVALUATIONS),
    "trainer.": attributes.OF_TRAINER,
    "module.": attributes.OF_MODULE,
    "datamodule.": attributes.OF_DATAMODULE,
    "strategy": engines.STRATEGIES,
}


def called_here(where: str, name: str) -> str | None:
    """What a name of another trainer is called here.

    Args:
        where: Where it was written: ``"strategy"``; as an argument of a class or a method of ours,
            ``"Trainer"``, ``"Checkpoint"``, ``"fit"``; or as an attribute, ``"trainer."``,
            ``"module."``, ``"datamodule."``.
        name: As it was written.

    Returns:
        The name here, or a sentence with what to do instead. None for names that no other trainer has.

    Example:
        >>> called_here("Trainer", "gradient_clip_val")
        'clip_grad_norm'
    """
    return names_in(where).get(name)


def names_in(where: str) -> Mapping[str, str]:
    """All names of one place, with what ``called_here`` says of them; none for a place that has none."""
    return _TABLE.get(where, {})


def advice(where: str, name: str) -> str:
    """What ``called_here`` says as the end of a message; "" for names that no other trainer has.

    Example:
        >>> advice("module.", "current_epoch")
        'use self.epoch'
    """
    ours = called_here(where, name) or ""
    return f"use {ours}" if ours.startswith(("self.", "torch.")) and ", self" not in ours else ours
