"""Names that other trainers export and the arguments of their classes, answered with ours.

The names of their arguments for a Trainer, of its attributes and of their methods are in
``trainer/config/peer_names.py``, those of their hooks in ``callbacks/hooks.py``.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from .errors import PacelineError, nearest

_PUBLIC = (
    "",
    ".callbacks",
    ".strategies",
    ".schedules",
    ".parameter_groups",
    ".mixing",
    ".testing",
)
_ROOT = __name__.partition(".")[0]
_COMPAT = "compat"

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
    "Tuner": "call trainer.find_learning_rate(module, dataloader) or trainer.find_batch_size(...)",
    "LearningRateFinder": "call trainer.find_learning_rate(module, dataloader)",
    "BatchSizeFinder": "call trainer.find_batch_size(module, dataloader)",
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
    "notebook_launcher": "call Trainer(devices=...).fit: it starts the ranks",
    "debug_launcher": "call Trainer(devices=...).fit: it starts the ranks",
    "find_executable_batch_size": "call trainer.find_batch_size(module, dataloader)",
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
        return text + (_as_it_is() if name in _LIGHTNING else "")
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


def _as_it_is() -> str:
    if find_spec(f"{_ROOT}.{_COMPAT}") is None:
        return ""
    return f". Lightning code also runs as it is, with: import {_ROOT}.{_COMPAT}.lightning as L"


class Refused:
    """In the place of a method that is not needed here: the error of a call says why.

    Args:
        name: The method.
        fix: What to do instead.

    Example:
        >>> Refused("save_hyperparameters", "delete the call")()
        Traceback (most recent call last):
        paceline.errors.PacelineError: save_hyperparameters is not needed here
          fix: delete the call
    """

    def __init__(self, name: str, fix: str) -> None:
        self._name, self._fix = name, fix

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse the call, whatever its arguments."""
        raise PacelineError(f"{self._name} is not needed here", fix=self._fix)


_FOLDER = "files go to the run's folder: Trainer(run_dir=..., name=...)"
_NOT_NEEDED = "remove it: it is not needed"
_EVERY_EPOCHS = 'every="2ep" is every second epoch'
_LOGGER = {"save_dir": _FOLDER, "version": _FOLDER, "prefix": _NOT_NEEDED}
_DISTRIBUTED = {
    "accelerator": "Trainer(accelerator=...)",
    "parallel_devices": "Trainer(devices=...)",
    "num_nodes": "Trainer(num_nodes=...)",
    "precision_plugin": "Trainer(precision=...)",
    "cluster_environment": "remove it: the launcher's environment is found by itself",
    "checkpoint_io": _NOT_NEEDED,
    "process_group_backend": "remove it: the device decides it",
    "timeout": "Trainer(timeouts=...)",
    "start_method": "remove it: ranks are started as processes of the script",
}
ARGUMENTS: dict[str, dict[str, str]] = {
    "Checkpoint": {
        "dirpath": _FOLDER,
        "save_folder": _FOLDER,
        "filename": "remove it: checkpoints are named by their step, and run.best and run.latest find them",
        "save_top_k": "keep_best",
        "save_total_limit": "keep",
        "num_checkpoints_to_keep": "keep",
        "save_last": "remove it: the newest checkpoint is always kept, as run.latest",
        "every_n_epochs": _EVERY_EPOCHS,
        "every_n_train_steps": "every",
        "save_steps": "every",
        "save_interval": "every",
        "train_time_interval": 'every="10min" is every ten minutes',
        "save_weights_only": "weights_only",
        "save_only_model": "weights_only",
        "async_save": "background",
        "save_on_train_epoch_end": _NOT_NEEDED,
        "auto_insert_metric_name": _NOT_NEEDED,
        "enable_version_counter": _NOT_NEEDED,
        "verbose": "remove it: the log has a line for each checkpoint",
    },
    "EarlyStopping": {
        "early_stopping_patience": "patience",
        "early_stopping_threshold": "min_delta",
        "check_on_train_epoch_end": 'remove it: "train/..." is looked at after each epoch',
        "strict": "remove it: a monitor that is never logged is an error",
        "verbose": "remove it: the log has the reason of a stop",
        "log_rank_zero_only": _NOT_NEEDED,
    },
    "Timer": {"duration": "Trainer(max_time=...)", "interval": "Trainer(max_time=...)"},
    "ModelSummary": {"max_depth": "remove it: the table has a row for each direct part of the module"},
    "Progress": {
        "refresh_rate": "every",
        "process_position": _NOT_NEEDED,
        "leave": _NOT_NEEDED,
        "theme": _NOT_NEEDED,
        "console_kwargs": _NOT_NEEDED,
    },
    "LearningRateMonitor": {
        "logging_interval": "every",
        "log_momentum": "momentum",
        "log_weight_decay": "weight_decay",
    },
    "DeviceMonitor": {"cpu_stats": "host"},
    "Throughput": {
        "window_size": "window",
        "available_flops": "peak_flops",
        "length_fn": "tokens",
        "batch_size_fn": "remove it: samples are counted by themselves",
    },
    "SWA": {
        "swa_lrs": "give the learning rates of the last part in configure_optimizers",
        "swa_epoch_start": "start",
        "annealing_epochs": "give the schedule in configure_optimizers",
        "annealing_strategy": "give the schedule in configure_optimizers",
        "avg_fn": "subclass WeightAverage for another average",
        "device": _NOT_NEEDED,
    },
    "EMA": {
        "update_every_n_steps": "every",
        "update_starting_at_step": "start",
        "update_interval": "every",
        "half_life": "decay",
        "device": _NOT_NEEDED,
    },
    "WeightAverage": {"avg_fn": "override update in a subclass", "device": _NOT_NEEDED},
    "Freeze": {
        "unfreeze_backbone_at_epoch": 'until="10ep" trains them from epoch 10 on',
        "unfreeze_at_epoch": 'until="10ep" trains them from epoch 10 on',
    },
    "PredictionWriter": {
        "output_dir": "path",
        "write_interval": "remove it: rows are written as they are computed",
    },
    "Profiler": {
        "dirpath": _FOLDER,
        "filename": _FOLDER,
        "schedule": "wait=, warmup=, active= and repeat= choose the steps",
    },
    "GradientAccumulationScheduler": {"accumulate_grad_batches": "scheduling"},
    "TensorBoard": _LOGGER
    | {
        "name": _FOLDER,
        "sub_dir": _FOLDER,
        "log_dir": _FOLDER,
        "log_graph": _NOT_NEEDED,
        "default_hp_metric": _NOT_NEEDED,
    },
    "CSVLogger": _LOGGER | {"name": _FOLDER, "flush_logs_every_n_steps": _NOT_NEEDED},
    "WandB": _LOGGER
    | {
        "offline": 'mode="offline"',
        "log_model": "remove it: checkpoints stay in the run's folder",
        "checkpoint_name": "remove it: checkpoints stay in the run's folder",
        "experiment": "remove it: the callback opens the run itself",
    },
    "MLflow": _LOGGER
    | {
        "experiment_name": "experiment",
        "run_name": "name",
        "log_model": "remove it: checkpoints stay in the run's folder",
        "run_id": "remove it: a run that resumes continues under its own id",
    },
    "DDP": _DISTRIBUTED
    | {"ddp_comm_hook": "remove it: gradients are reduced by torch's DistributedDataParallel as it is"},
    "FSDP": _DISTRIBUTED
    | {
        "sharding_strategy": "reshard_after_forward=False keeps what was gathered; HSDP shards in groups",
        "auto_wrap_policy": "def shard_units(self) on the module returns what is sharded together",
        "activation_checkpointing_policy": "activation_checkpointing=True",
        "state_dict_type": "remove it: a checkpoint can be read under every strategy",
        "device_mesh": "HSDP(replicate=...) of paceline.strategies has two dimensions",
        "use_orig_params": _NOT_NEEDED,
        "limit_all_gathers": _NOT_NEEDED,
        "sync_module_states": _NOT_NEEDED,
        "backward_prefetch": _NOT_NEEDED,
    },
    "DeepSpeed": _DISTRIBUTED
    | {
        "zero_stage": "stage",
        "offload_optimizer": "offload",
        "offload_parameters": "offload",
        "hf_ds_config": "config",
    },
    "seed_everything": {
        "workers": "remove it: samples are seeded by their position, in loader workers too",
        "verbose": _NOT_NEEDED,
    },
}
"""Arguments of other trainers by the class or function of ours: an argument of ours, or a sentence."""
