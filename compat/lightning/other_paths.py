"""The paths at which Lightning defines a name, where it is elsewhere here: programs import from both."""

from __future__ import annotations

import sys
from importlib import import_module

_PRIVATE = "translation.private"
_ACCELERATORS = ("accelerator", "cpu", "cuda", "mps")
_STRATEGIES = ("ddp", "fsdp", "deepspeed", "single_device", "strategy")
_PRECISION = ("amp", "deepspeed", "double", "fsdp", "half", "precision")
_ENVIRONMENTS = (
    "cluster_environment",
    "kubeflow",
    "lightning",
    "lsf",
    "mpi",
    "slurm",
    "torchelastic",
)

PATHS: dict[str, str] = {
    **{f"pytorch.accelerators.{one}": "pytorch.accelerators" for one in _ACCELERATORS},
    "pytorch.callbacks.checkpoint": "pytorch.callbacks.model_checkpoint",
    "pytorch.callbacks.lambda_function": "pytorch.callbacks.callback",
    "pytorch.callbacks.rich_model_summary": "pytorch.callbacks.model_summary",
    "pytorch.callbacks.stochastic_weight_avg": "pytorch.callbacks.weight_averaging",
    "pytorch.callbacks.progress.progress_bar": "pytorch.callbacks.progress.bars",
    "pytorch.loggers.comet": "pytorch.loggers",
    **{f"pytorch.plugins.precision.{one}": "pytorch.plugins.precision" for one in _PRECISION},
    **{f"pytorch.plugins.environments.{one}": "pytorch.plugins.environments" for one in _ENVIRONMENTS},
    **{
        f"pytorch.plugins.io.{one}": "pytorch.plugins.io"
        for one in ("async_plugin", "checkpoint_plugin", "torch_plugin", "wrapper")
    },
    **{
        f"pytorch.profilers.{one}": "pytorch.profilers"
        for one in ("advanced", "base", "profiler", "pytorch", "simple")
    },
    "pytorch.trainer.connectors": _PRIVATE,
    "pytorch.trainer.connectors.accelerator_connector": "pytorch.trainer.accelerator_connector",
    "pytorch.tuner.lr_finder": "pytorch.tuner",
    "pytorch.tuner.tuning": "pytorch.tuner",
    "pytorch.utilities.apply_func": "pytorch.utilities",
    "pytorch.utilities.deepspeed": "pytorch.utilities",
    "pytorch.strategies.parallel": "pytorch.strategies",
    "fabric.strategies.parallel": "pytorch.strategies",
    "fabric.strategies.xla_fsdp": "pytorch.strategies",
    "fabric.plugins.precision.bitsandbytes": "pytorch.plugins.precision",
    "pytorch.utilities.warnings": "pytorch.utilities.rank_zero",
    "pytorch.utilities.model_summary.model_summary": "pytorch.utilities.model_summary",
    "fabric.accelerators": "pytorch.accelerators",
    **{f"fabric.accelerators.{one}": "pytorch.accelerators" for one in _ACCELERATORS},
    **{f"fabric.loggers.{one}": "fabric.loggers" for one in ("csv_logs", "logger", "tensorboard")},
    "fabric.plugins": "pytorch.plugins",
    "fabric.plugins.precision": "pytorch.plugins.precision",
    **{f"fabric.plugins.precision.{one}": "pytorch.plugins.precision" for one in _PRECISION},
    "fabric.plugins.environments": "pytorch.plugins.environments",
    **{f"fabric.plugins.environments.{one}": "pytorch.plugins.environments" for one in _ENVIRONMENTS},
    "fabric.plugins.io": "pytorch.plugins.io",
    **{f"fabric.plugins.io.{one}": "pytorch.plugins.io" for one in ("checkpoint_io", "torch_io")},
    "fabric.strategies": "pytorch.strategies",
    **{f"fabric.strategies.{one}": f"pytorch.strategies.{one}" for one in _STRATEGIES},
    "fabric.utilities.apply_func": "pytorch.utilities",
    "fabric.utilities.cloud_io": "pytorch.utilities.cloud_io",
    "fabric.utilities.distributed": "pytorch.utilities.distributed",
    "fabric.utilities.exceptions": "pytorch.utilities.exceptions",
    "fabric.utilities.types": "pytorch.utilities.types",
    "fabric.utilities.warnings": "pytorch.utilities.rank_zero",
    **dict.fromkeys(
        (
            "fabric.connector",
            "fabric.plugins.collectives",
            "fabric.plugins.collectives.torch_collective",
            "fabric.strategies.launchers",
            "fabric.strategies.launchers.subprocess_script",
            "fabric.utilities.device_parser",
            "fabric.utilities.imports",
            "fabric.utilities.init",
            "fabric.utilities.load",
            "fabric.utilities.throughput",
            "pytorch.loops",
            "pytorch.loops.evaluation_loop",
            "pytorch.loops.fetchers",
            "pytorch.loops.fit_loop",
            "pytorch.loops.training_epoch_loop",
            "pytorch.overrides",
            "pytorch.overrides.distributed",
            "pytorch.trainer.connectors.data_connector",
            "pytorch.trainer.connectors.logger_connector",
            "pytorch.trainer.connectors.logger_connector.result",
            "pytorch.trainer.setup",
        ),
        _PRIVATE,
    ),
}
"""Lightning's paths below ``lightning`` by ours."""


MODULES = (
    "pytorch.callbacks.progress.rich_progress",
    "pytorch.callbacks.progress.tqdm_progress",
    "pytorch.core.mixins",
    "pytorch.core.optimizer",
    "pytorch.core.saving",
    *(f"pytorch.utilities.{one}" for one in ("combined_loader", "grads", "memory", "parsing", "seed")),
)
"""Of ours, which Lightning imports with its package: programs reach them as attributes."""


def register(package: str) -> None:
    """Let all of them be importable, and attributes of what is above them.

    Args:
        package: This one's name.
    """
    for path in MODULES:
        import_module(f"{package}.{path}")
    for path, ours in sorted(PATHS.items()):  # a folder before what is in it
        name = f"{package}.{path}"
        sys.modules[name] = module = import_module(f"{package}.{ours}")
        above, _, last = name.rpartition(".")
        parent = import_module(above)
        if last not in vars(parent):
            setattr(parent, last, module)
