"""paceline: a trainer for PyTorch.

The same numbers on one device or many, at the speed of the loop you would have written.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .common.version import __version__

__all__ = [
    "CombinedLoader",
    "DataModule",
    "Mixture",
    "PacelineError",
    "Predictions",
    "Run",
    "TrainModule",
    "Trainer",
    "__version__",
    "fetch",
    "order_seed",
    "seed_everything",
]

if TYPE_CHECKING:
    from .errors import PacelineError
    from .trainer.data.combined_loader import CombinedLoader
    from .trainer.data.mixtures.mixture import Mixture
    from .trainer.datamodule import DataModule
    from .trainer.loops.predictions import Predictions
    from .trainer.module import TrainModule
    from .trainer.rng import order_seed, seed_everything
    from .trainer.run.run import Run
    from .trainer.storage.fetch import fetch
    from .trainer.trainer import Trainer

_HOMES = {
    "CombinedLoader": ".trainer.data.combined_loader",
    "DataModule": ".trainer.datamodule",
    "Mixture": ".trainer.data.mixtures.mixture",
    "PacelineError": ".errors",
    "Predictions": ".trainer.loops.predictions",
    "Run": ".trainer.run.run",
    "TrainModule": ".trainer.module",
    "Trainer": ".trainer.trainer",
    "fetch": ".trainer.storage.fetch",
    "order_seed": ".trainer.rng",
    "seed_everything": ".trainer.rng",
}
_RUN_AGAIN = {  # the Trainer of a script that a command of ours runs
    "PACELINE_REPLAY": (".tools.rerun.replay_trainer", "ReplayTrainer"),
    "PACELINE_TRACE": (".tools.rerun.trace_trainer", "TraceTrainer"),
    "PACELINE_ONE_STEP": (".tools.rerun.one_step_trainer", "OneStepTrainer"),
    "PACELINE_CHECK": (".tools.rerun.check_trainer", "CheckTrainer"),
}


def __getattr__(name: str) -> Any:
    # Loaded at first use, so that the command line answers --help without torch.
    if name not in _HOMES:
        raise import_module(".other_trainers.imports", __name__).missing_name(__name__, name)
    for variable, (module, trainer) in _RUN_AGAIN.items() if name == "Trainer" else ():
        if variable in os.environ:
            return getattr(import_module(module, __name__), trainer)
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
