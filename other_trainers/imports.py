"""Names that other trainers export, answered with ours."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..errors import nearest

_PUBLIC = (
    "",
    ".callbacks",
    ".strategies",
    ".schedules",
    ".parameter_groups",
    ".optimizers",
    ".mixing",
    ".config",
    ".testing",
)
_ROOT = __name__.partition(".")[0]
_AS_IT_IS = ". Lightning code also runs as it is, with: import paceline.compat.lightning as L"

# Of Lightning: ``<package>:<name>``, or a sentence.
_LIGHTNING = {
    "LightningModule": ":TrainModule",
    "LightningDataModule": ":DataModule",
    "ModelCheckpoint": "callbacks:Checkpoint",
    "OnExceptionCheckpoint": "callbacks:Checkpoint",
    "TQDMProgressBar": "callbacks:Progress",
    "RichProgressBar": "callbacks:Progress",
    "ProgressBar": "callbacks:Progress",
    "RichModelSummary": "callbacks:ModelSummary",
    "StochasticWeightAveraging": "callbacks:SWA",
    "WeightAveraging": "callbacks:WeightAverage",
    "EMAWeightAveraging": "callbacks:EMA",
    "BaseFinetuning": "callbacks:Freeze",
    "BackboneFinetuning": "callbacks:Freeze",
    "DeviceStatsMonitor": "callbacks:DeviceMonitor",
    "ThroughputMonitor": "callbacks:Throughput",
    "BasePredictionWriter": "callbacks:PredictionWriter",
    "SpikeDetection": "callbacks:LossSpikes",
    "Tuner": "call find_learning_rate or find_batch_size of paceline.tools",
    "LearningRateFinder": "call paceline.tools.find_learning_rate(trainer, module, dataloader)",
    "BatchSizeFinder": "call paceline.tools.find_batch_size(trainer, module, dataloader)",
    "ModelPruning": "prune with torch.nn.utils.prune in a hook such as on_train_epoch_end",
    "TensorBoardLogger": "callbacks:TensorBoard",
    "WandbLogger": "callbacks:WandB",
    "MLFlowLogger": "callbacks:MLflow",
    "SimpleProfiler": "callbacks:Profiler",
    "AdvancedProfiler": "callbacks:Profiler",
    "PyTorchProfiler": "callbacks:Profiler",
    "rank_zero_only": "write `if trainer.is_global_zero:`",
    "rank_zero_info": "call trainer.log_line(text)",
    "rank_zero_warn": "call trainer.log_line(text)",
    "rank_zero_debug": "call trainer.log_line(text)",
    "LightningCLI": "`paceline fit` runs a recipe with a config file and options",
    "SingleDeviceStrategy": "strategies:Single",
    "DDPStrategy": "strategies:DDP",
    "FSDPStrategy": "strategies:FSDP",
    "ModelParallelStrategy": "strategies:FSDP",
    "DeepSpeedStrategy": "strategies:DeepSpeed",
    "MixedPrecision": 'pass Trainer(precision="bf16") or Trainer(precision="fp16")',
    "MixedPrecisionPlugin": 'pass Trainer(precision="bf16") or Trainer(precision="fp16")',
    "grad_norm": "the callback Norms of paceline.callbacks publishes norms of gradients and weights",
    "Fabric": "Trainer.fit runs the loop of a TrainModule",
}
_OTHERS = {
    # Hugging Face's transformers
    "TrainingArguments": "its values are arguments of paceline.Trainer",
    "Seq2SeqTrainer": ":Trainer",
    "Seq2SeqTrainingArguments": "its values are arguments of paceline.Trainer",
    "TrainerCallback": "callbacks:Callback",
    "EarlyStoppingCallback": "callbacks:EarlyStopping",
    "ProgressCallback": "callbacks:Progress",
    "PrinterCallback": "callbacks:Progress",
    "TensorBoardCallback": "callbacks:TensorBoard",
    "WandbCallback": "callbacks:WandB",
    "MLflowCallback": "callbacks:MLflow",
    "set_seed": ":seed_everything",
    # Accelerate
    "Accelerator": "paceline.Trainer takes its place: Trainer(...).fit(module, dataloader)",
    "DistributedDataParallelKwargs": "strategies:DDP",
    "FullyShardedDataParallelPlugin": "strategies:FSDP",
    "DeepSpeedPlugin": "strategies:DeepSpeed",
    "notebook_launcher": "call Trainer(devices=...).fit: it starts the ranks, in a notebook too",
    "debug_launcher": "call Trainer(devices=...).fit: it starts the ranks",
    "find_executable_batch_size": "call paceline.tools.find_batch_size(trainer, module, dataloader)",
    # Composer
    "ComposerModel": ":TrainModule",
    "HuggingFaceModel": ":TrainModule",
    "CheckpointSaver": "callbacks:Checkpoint",
    "LRMonitor": "callbacks:LearningRateMonitor",
    "SpeedMonitor": "callbacks:Throughput",
    "RuntimeEstimator": "callbacks:Progress",
    "MemoryMonitor": "callbacks:DeviceMonitor",
    "SystemMetricsMonitor": "callbacks:DeviceMonitor",
    "OptimizerMonitor": "callbacks:Norms",
    "EarlyStopper": "callbacks:EarlyStopping",
    "WandBLogger": "callbacks:WandB",
    "FileLogger": "callbacks:JSONLogger",
    "Event": "each event is a hook of paceline.callbacks.Callback",
    "MixUp": "mixing:MixUp",
    "CutMix": "mixing:CutMix",
}
_TRAINERS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "composer")
CLASSES = _LIGHTNING | _OTHERS
"""What other trainers export under a name that is none here, and what to use."""


def missing_name(module: str, name: str) -> Exception:
    """The error for a public name that a package of ours does not have, for its ``__getattr__``.

    Args:
        module: The package.
        name: What was asked for.

    Returns:
        An ``ImportError`` for ``from package import name``, whose message Python would otherwise replace by
        its own. For all else, such as ``hasattr(package, name)``, an ``AttributeError``.
    """
    asking = inspect.currentframe()
    for _ in range(2):  # this function, the package's __getattr__, and who asks it
        asking = asking.f_back if asking is not None else None
    imports = asking is not None and asking.f_code.co_name == "_handle_fromlist"
    hint = _hint(module, name)
    if imports and hint:
        return ImportError(f"cannot import name {name!r} from {module!r}; {hint}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (hint and f"; {hint}"))


def object_hint(value: Any) -> str:
    """What to import in the place of an object of another trainer's class, or of one derived from it.

    Returns:
        Ends in an import, or is a sentence; "" for all other objects.
    """
    for cls in type(value).__mro__:
        if cls.__module__.partition(".")[0] in _TRAINERS:
            found = _hint(f"{_ROOT}.callbacks", cls.__name__)
            if found and not found.startswith("did you mean"):
                return found
    return ""


def _hint(module: str, name: str) -> str:
    """What to write instead; "" where nothing is like it."""
    if name.startswith("_"):
        return ""
    ours = CLASSES.get(name)
    if ours is not None:
        text = ours
        if " " not in ours:
            package, _, attribute = ours.partition(":")
            home = ".".join(filter(None, (_ROOT, package)))
            text = f"use {attribute}: from {home} import {attribute}"
        return text + (_AS_IT_IS if name in _LIGHTNING else "")
    if find_spec(f"{module}.{name}") is not None:  # a submodule, which Python imports next
        return ""
    return _elsewhere(module, name)


def _elsewhere(module: str, name: str) -> str:
    """The package that has the name, or the nearest name of this one."""
    for package in (f"{_ROOT}{one}" for one in _PUBLIC):
        if name in import_module(package).__all__:
            return f"it is in {package}: from {package} import {name}"
    near = nearest(name, import_module(module).__all__)
    return f"did you mean {near}?" if near else ""
