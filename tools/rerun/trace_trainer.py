"""The Trainer of a script that ``paceline diff --replay`` runs again: it keeps the tensors of two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...trainer.trainer import Trainer
from ...trainer.utils.tensor_checksum import sample_of_weights
from ..debug.replay import require_first_weights, watchers
from ..debug.trace import Trace, requested, source_of
from .repeated_trainer import RepeatedTrainer


class TraceTrainer(RepeatedTrainer):
    """A ``Trainer`` on the run's own ranks that writes nothing but its trace, and ends after it."""

    def __init__(self, **arguments: Any) -> None:
        request = requested()
        kept = watchers(arguments)
        off = dict.fromkeys(("loggers", "checkpoint", "progress", "record", "compile", "profile"), False)
        more = {} if request.accelerator is None else {"accelerator": request.accelerator}
        quiet = {"callbacks": [*kept, Trace(request)], "run_dir": None, "max_restarts": 0, "max_time": None}
        super().__init__(**arguments | off | more | quiet)

    @property
    def wanted_fit(self) -> int:
        return requested().fit

    def repeat(self, module: Any, data: tuple[Any, Any, Any], allow: str | Sequence[str]) -> None:
        request = requested()
        source = source_of(request)
        if source is None and request.same_code:
            require_first_weights(request.run, request.first, sample_of_weights(module))
        Trainer.fit(self, module, *data, resume=source, allow=("data",) if source else ())
