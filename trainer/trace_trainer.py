"""The Trainer of a script that ``paceline diff --replay`` runs again: it keeps the tensors of two steps."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import PacelineError
from .config.peer_names import refuse_unknown
from .debug.replay import watchers
from .debug.trace import Trace, requested, source_of
from .repeated_trainer import RepeatedTrainer
from .run.run import Run
from .utils.tensor_checksum import sample_of_weights

_fits = count(1)


class TraceTrainer(RepeatedTrainer):
    """A ``Trainer`` on the run's own ranks that writes nothing but its trace, and ends after it."""

    def __init__(self, **arguments: Any) -> None:
        request = requested()
        kept = watchers(arguments)
        off = dict.fromkeys(("loggers", "checkpoint", "progress", "record", "compile", "profile"), False)
        more = {} if request.accelerator is None else {"accelerator": request.accelerator}
        quiet = {"callbacks": [*kept, Trace(request)], "run_dir": None, "max_restarts": 0, "max_time": None}
        super().__init__(**arguments | off | more | quiet)

    def fit(
        self,
        module: Any = None,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        datamodule: Any = None,
        resume: Any = None,
        allow: Any = (),
        decay: Any = None,
        **unknown: Any,
    ) -> Run:
        """Trace the steps and end the script; a run that does nothing where it is another fit."""
        refuse_unknown("fit", unknown)
        request = requested()
        if next(_fits) != request.fit:
            return Run(None)
        source = source_of(request)
        began = json.loads((Path(request.run) / "env.json").read_text()).get("weights")
        if source is None and request.same_code and began not in (None, sample_of_weights(module)):
            raise PacelineError(
                f"no checkpoint was written before step {request.first}, and the script now builds other "
                "weights than those the run began with",
                where=request.run,
                fix="seed_everything(0) before the module is built makes them the same; "
                'Checkpoint(every="100st") leaves a checkpoint to begin from',
            )
        data = (train_dataloader, val_dataloader, datamodule)
        super().fit(module, *data, resume=source, allow=("data",) if source else ())
        raise SystemExit(0)
