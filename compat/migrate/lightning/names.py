"""Lightning: modules, data modules, callbacks, loggers, and what else is imported from it."""

from __future__ import annotations

from collections.abc import Mapping

from ..tables import (
    Entry,
    Library,
    Owner,
    all_of,
    changes,
    dropped,
    imported,
    renamed,
    rewrite,
    runs,
)
from .trainer_names import TRAINER

_LOGGED = (
    "training values are means over a log window, and over the epoch as <name>_epoch; val_loss is val/loss"
)
_NEVER = "it would never be called here"
_COLLECT = "collect what you need in the step, and use it in"
_EACH_STEP = "it comes once for each optimizer step here, with a list of outputs"

LOG_ARGUMENTS: dict[str, Entry] = {
    "prog_bar": runs(),
    "on_step": dropped("values are always logged every log_every steps"),
    "on_epoch": dropped("the mean of the epoch is always logged, in training as <name>_epoch"),
    "sync_dist": dropped("values are always reduced over all ranks"),
    "logger": dropped("every logged value goes to the loggers"),
    "rank_zero_only": dropped("values are the same on every rank; log on all of them"),
    "add_dataloader_idx": dropped("with several dataloaders their names are part of the metric's name"),
    "enable_graph": dropped("logged values are detached"),
    "sync_dist_group": dropped("values are always reduced over all ranks"),
    "metric_attribute": dropped("the metric object itself is logged"),
    "batch_size": renamed("weight", "the samples of the batch are the weight unless given"),
    "reduce_fx": renamed("reduce", "'mean', 'sum', 'min' or 'max'"),
}

MODULE_MEMBERS: dict[str, Entry] = {
    **all_of(
        "device print optimizers lr_schedulers manual_backward toggle_optimizer log_dict "
        "untoggle_optimizer all_gather automatic_optimization load_from_checkpoint",
        runs(),
    ),
    "log": changes(_LOGGED),
    "global_step": changes(
        "it counts optimizer steps: with manual optimization one for each training_step"
    ),
    "current_epoch": renamed("epoch"),
    "global_rank": rewrite("it is called self.trainer.rank here", "trainer.rank"),
    "local_rank": rewrite("self.trainer.rank is the rank among all"),
    "hparams_initial": renamed("hparams"),
    "save_hyperparameters": dropped("hparams record the constructor's arguments by themselves"),
    **all_of(
        "logger loggers",
        rewrite("log with self.log, self.log_image, self.log_histogram, self.log_table, self.log_text"),
    ),
    "clip_gradients": rewrite(
        "leave it out: Trainer(clip_grad_norm=...) clips each in its step(), on_before_optimizer_step one"
    ),
    "freeze": rewrite("write self.requires_grad_(False), or Freeze of paceline.callbacks"),
    "unfreeze": rewrite("write self.requires_grad_(True)"),
    "toggled_optimizer": rewrite("call toggle_optimizer before and untoggle_optimizer after"),
    "to_torchscript": rewrite("call torch.jit.script on the module's network"),
    "to_onnx": rewrite("call torch.onnx.export on the module's network"),
    "example_input_array": changes("nothing reads it"),
    "strict_loading": changes("nothing reads it; weights have to fit the module"),
    "fabric": rewrite("the run is self.trainer"),
    "dtype": rewrite("take next(self.parameters()).dtype"),
}

UPDATE = "it is called as optimizer_step(self, optimizer, closure) here; self.epoch says when"
_KEEP = "what is added to it must be plain data"
MODULE_METHODS: dict[str, Entry] = {
    **all_of(
        "training_step validation_step test_step predict_step forward configure_optimizers setup teardown "
        "prepare_data train_dataloader val_dataloader test_dataloader predict_dataloader "
        "transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer state_dict "
        "load_state_dict",
        runs(),
    ),
    "lr_scheduler_step": runs(),
    "configure_model": changes(
        "it runs on the meta device: parts get values from their reset_parameters()"
    ),
    "configure_sharded_model": renamed("configure_model"),
    "configure_callbacks": rewrite(f"{_NEVER}; pass them as Trainer(callbacks=[...])"),
    "configure_gradient_clipping": rewrite(
        f"{_NEVER}; Trainer(clip_grad_norm=...), or on_before_optimizer_step"
    ),
    "optimizer_step": rewrite(UPDATE),
    "optimizer_zero_grad": rewrite(f"{_NEVER}; gradients are None after each step"),
    "backward": changes(
        "it gets a micro-batch's share of the loss; super().backward(loss) takes it backward"
    ),
    "training_epoch_end": rewrite(f"{_NEVER}; {_COLLECT} on_train_epoch_end(self)"),
    "validation_epoch_end": rewrite(f"{_NEVER}; {_COLLECT} on_validation_end(self)"),
    "test_epoch_end": rewrite(f"{_NEVER}; {_COLLECT} on_test_end(self)"),
    **all_of(
        "training_step_end validation_step_end test_step_end",
        rewrite(f"{_NEVER}; compute it in the step itself"),
    ),
    "tbptt_split_batch": rewrite(f"{_NEVER}; split the batch in training_step, with manual optimization"),
    "get_progress_bar_dict": rewrite(f"{_NEVER}; log with prog_bar=True"),
    "on_before_backward": rewrite(f"{_NEVER}; write it at the end of training_step"),
    "on_before_zero_grad": rewrite(
        f"{_NEVER}; on_before_optimizer_step has gradients, on_step_end new weights"
    ),
    "on_validation_batch_start": rewrite(f"{_NEVER}; write it at the beginning of validation_step"),
    "on_test_batch_start": rewrite(f"{_NEVER}; write it at the beginning of test_step"),
    "on_predict_batch_start": rewrite(f"{_NEVER}; write it at the beginning of predict_step"),
    "on_sanity_check_start": rewrite(
        f"{_NEVER}; on_validation_start, where trainer.loop.is_fit_validation is False"
    ),
    "on_sanity_check_end": rewrite(
        f"{_NEVER}; on_validation_end, where trainer.loop.is_fit_validation is False"
    ),
}
_NO_HOOK = f"{_NEVER}: docs/extending/loop.md has every hook"

HOOKS: dict[str, tuple[str, int, str]] = {
    "setup": ("on_setup", 1, ""),
    "teardown": ("on_teardown", 1, ""),
    "on_fit_start": ("on_fit_start", 0, ""),
    "on_fit_end": ("on_fit_end", 0, ""),
    "on_train_start": ("on_fit_start", 0, "it comes before the sanity pass here"),
    "on_train_end": ("on_fit_end", 0, ""),
    "on_epoch_start": ("on_train_epoch_start", 0, "it is not called in validation here"),
    "on_epoch_end": ("on_train_epoch_end", 0, "it is not called in validation here"),
    "on_train_epoch_start": ("on_train_epoch_start", 0, ""),
    "on_train_epoch_end": ("on_train_epoch_end", 0, ""),
    "on_train_batch_start": ("on_step_start", 0, "it comes once for each optimizer step here"),
    "on_train_batch_end": ("on_step_end", 0, _EACH_STEP),
    "on_after_backward": ("on_before_optimizer_step", 0, "it comes once for each optimizer step here"),
    "on_before_optimizer_step": ("on_before_optimizer_step", 1, ""),
    "on_validation_start": ("on_validation_start", 0, ""),
    "on_validation_epoch_start": ("on_validation_start", 0, ""),
    "on_validation_epoch_end": (
        "on_validation_end",
        0,
        "metric objects that were logged are reset already here",
    ),
    "on_validation_end": ("on_validation_end", 0, ""),
    "on_validation_batch_end": ("on_validation_step_end", 3, ""),
    "on_test_start": ("on_test_start", 0, ""),
    "on_test_epoch_start": ("on_test_start", 0, ""),
    "on_test_epoch_end": ("on_test_end", 0, "metric objects that were logged are reset already here"),
    "on_test_end": ("on_test_end", 0, ""),
    "on_test_batch_end": ("on_test_step_end", 3, ""),
    "on_predict_start": ("on_predict_start", 0, ""),
    "on_predict_epoch_start": ("on_predict_start", 0, ""),
    "on_predict_epoch_end": ("on_predict_end", 0, ""),
    "on_predict_end": ("on_predict_end", 0, ""),
    "on_predict_batch_end": ("on_predict_step_end", 3, ""),
    "on_save_checkpoint": ("on_save_checkpoint", 1, _KEEP),
    "on_load_checkpoint": ("on_load_checkpoint", 1, ""),
    "on_exception": ("on_exception", 1, ""),
}
"""Hooks with the name they have here, how many arguments stay, and what is different."""

_LOAD = {
    "checkpoint_path": renamed("path"),
    "map_location": dropped("the module is built on the CPU"),
    "weights_only": dropped("nothing in a pickle is run"),
    "strict": rewrite("leave it out: the weights have to fit the module"),
    "hparams_file": rewrite("pass the constructor's arguments by keyword"),
}
MODULE = Owner(
    imported("paceline.TrainModule"),
    members=MODULE_MEMBERS,
    methods=MODULE_METHODS,
    calls={
        "log": LOG_ARGUMENTS,
        "log_dict": LOG_ARGUMENTS,
        "load_from_checkpoint": _LOAD,
        "optimizers": {"use_pl_optimizer": dropped("the optimizer clips and unscales in its step()")},
    },
    kinds={"trainer": "Trainer"},
    other_method=_NO_HOOK,
)
DATA_MODULE = Owner(
    imported("paceline.DataModule"),
    members={"save_hyperparameters": dropped("hparams record the constructor's arguments by themselves")},
    methods={
        **all_of(
            "prepare_data setup teardown train_dataloader val_dataloader test_dataloader "
            "predict_dataloader state_dict load_state_dict transfer_batch_to_device "
            "on_before_batch_transfer on_after_batch_transfer",
            runs(),
        ),
        "on_exception": rewrite(f"{_NEVER} on a DataModule; write it in a callback"),
    },
    kinds={"trainer": "Trainer"},
)
CALLBACK = Owner(
    imported("paceline.callbacks.Callback"),
    methods={
        **all_of("state_dict load_state_dict", runs()),
        "state_key": rewrite("set self.name, where there are two of the class"),
        "on_before_backward": rewrite(f"{_NEVER}; on_before_optimizer_step has the gradients of the step"),
        "on_before_zero_grad": MODULE_METHODS["on_before_zero_grad"],
        "on_sanity_check_start": MODULE_METHODS["on_sanity_check_start"],
        "on_sanity_check_end": MODULE_METHODS["on_sanity_check_end"],
        "on_validation_batch_start": rewrite(_NO_HOOK),
        "on_test_batch_start": rewrite(_NO_HOOK),
        "on_predict_batch_start": rewrite(_NO_HOOK),
    },
    other_method=_NO_HOOK,
)

_RUN_FOLDER = "a run's files are in run_dir/<name>/<n>/"
CHECKPOINT = Owner(
    imported("paceline.callbacks.Checkpoint"),
    positional=("dirpath", "filename", "monitor", "verbose", "save_last", "save_top_k"),
    arguments={
        "monitor": runs(),
        "mode": runs(),
        "save_on_exception": runs(),
        "dirpath": dropped(f"{_RUN_FOLDER}; Trainer(run_dir=...) chooses where"),
        "filename": dropped("checkpoints are named by their step: step-00000500"),
        "verbose": dropped("nothing is printed"),
        "auto_insert_metric_name": dropped("checkpoints are named by their step"),
        "enable_version_counter": dropped("each run has a new folder"),
        "save_on_train_epoch_end": dropped("a checkpoint has the validation of its step"),
        "save_last": dropped("the newest checkpoint is always kept, as latest"),
        "save_top_k": renamed("keep_best", "keep=1 keeps the newest beside them"),
        "save_weights_only": renamed("weights_only"),
        "every_n_epochs": rewrite('write every="5ep"'),
        "every_n_train_steps": renamed("every"),
        "train_time_interval": renamed("every"),
    },
    members={
        "best_model_path": renamed("best", "a path"),
        "last_model_path": renamed("latest", "a path"),
        "best_k_models": rewrite("Run(folder).checkpoints are the paths of all that are kept"),
        "best_model_score": renamed("best_score", "a float"),
    },
    other_argument="no such argument here: docs/guides/checkpoints.md",
)
EARLY_STOPPING = Owner(
    imported("paceline.callbacks.EarlyStopping"),
    positional=("monitor", "min_delta", "patience", "verbose", "mode"),
    arguments={
        **all_of("monitor mode patience min_delta check_finite", runs()),
        **all_of("stopping_threshold divergence_threshold", runs()),
        "verbose": dropped("the log says why a run ended"),
        "strict": dropped("a value that is never logged is an error"),
        "check_on_train_epoch_end": dropped("a value of training is looked at after each epoch"),
        "log_rank_zero_only": dropped("rank 0 writes the log"),
    },
    members={
        "stopped_epoch": rewrite("trainer.stop_reason says why the run ended"),
        "best_score": renamed("best"),
    },
)
_RATE = Owner(
    imported("paceline.callbacks.LearningRateMonitor"),
    positional=("logging_interval", "log_momentum", "log_weight_decay"),
    arguments={
        "logging_interval": dropped("every=50 counts steps; log points have the rates anyway"),
        "log_momentum": renamed("momentum"),
        "log_weight_decay": renamed("weight_decay"),
    },
)


def _without_arguments(
    new: str, why: str, arguments: str, positional: str = "", members: Mapping[str, Entry] | None = None
) -> Owner:
    """A class whose arguments are left out here."""
    return Owner(
        imported(f"paceline.callbacks.{new}"),
        positional=tuple(positional.split()),
        arguments=all_of(arguments, dropped(why)),
        members=members or {},
        other_argument="no such argument here: docs/guides/callbacks.md",
    )


_BAR = ("Progress", "the bar has one form", "refresh_rate process_position leave theme console_kwargs")
_FILES = f"{_RUN_FOLDER}; Trainer(run_dir=, name=) chooses where"
_OF_FILES = all_of("log_dir root_dir save_dir version", rewrite("trainer.folder is the run's folder"))
_BOARD = "save_dir name version log_graph default_hp_metric prefix sub_dir"
_CSV = "save_dir name version prefix flush_logs_every_n_steps"
_OF_FILES["experiment"] = rewrite("log with self.log, self.log_image, self.log_histogram, self.log_text")
_SEED = "it seeds initial weights; data order and dropout follow Trainer(seed=...), 0 unless given"
OWNERS: dict[str, Owner] = {
    "Trainer": TRAINER,
    "LightningModule": MODULE,
    "LightningDataModule": DATA_MODULE,
    "Callback": CALLBACK,
    "ModelCheckpoint": CHECKPOINT,
    "EarlyStopping": EARLY_STOPPING,
    "LearningRateMonitor": _RATE,
    "TQDMProgressBar": _without_arguments(*_BAR, "refresh_rate process_position leave"),
    "RichProgressBar": _without_arguments(*_BAR, "refresh_rate leave theme console_kwargs"),
    "ModelSummary": _without_arguments("ModelSummary", "the table has one depth", "max_depth", "max_depth"),
    "RichModelSummary": _without_arguments(
        "ModelSummary", "the table has one depth", "max_depth", "max_depth"
    ),
    "DeviceStatsMonitor": _without_arguments(
        "DeviceMonitor", "host=True is the default", "cpu_stats", "cpu_stats"
    ),
    "GradientAccumulationScheduler": Owner(
        imported("paceline.callbacks.GradientAccumulationScheduler"), arguments={"scheduling": runs()}
    ),
    "TensorBoardLogger": _without_arguments("TensorBoard", _FILES, _BOARD, _BOARD, _OF_FILES),
    "CSVLogger": _without_arguments("CSVLogger", _FILES, _CSV, _CSV, _OF_FILES),
    "Logger": Owner(
        imported("paceline.callbacks.Logger"),
        methods={"log_metrics": rewrite("write write(self, row), its one method: docs/guides/logging.md")},
    ),
    "seed_everything": Owner(
        changes(_SEED, "paceline.seed_everything"),
        positional=("seed", "workers", "verbose"),
        arguments={
            "seed": runs(),
            "workers": dropped("loader workers are always seeded"),
            "verbose": dropped("nothing is printed"),
        },
    ),
    "CombinedLoader": Owner(
        imported("paceline.CombinedLoader"),
        positional=("iterables", "mode"),
        arguments={"iterables": renamed("loaders"), "mode": runs()},
    ),
}

_LR = "call paceline.tools.find_learning_rate(trainer, module, dataloader)"
_BATCH = "call paceline.tools.find_batch_size(trainer, module, dataloader)"
_LINE = "write self.print(...), or trainer.log_line(...) in a callback"
_CALLABLE = rewrite("from collections.abc import Callable", "collections.abc.Callable")
_TYPE = rewrite("from typing import Any", "typing.Any")
NAMES: dict[str, Entry] = {
    "EMAWeightAveraging": rewrite("write EMA(decay=...), of paceline.callbacks"),
    "WeightAveraging": rewrite("write EMA or SWA, or subclass WeightAverage, of paceline.callbacks"),
    "StochasticWeightAveraging": rewrite(
        "write SWA(start=0.8), of paceline.callbacks; rates are a schedule's"
    ),
    "LambdaCallback": rewrite(
        "write LambdaCallback(on_...=...), of paceline.callbacks, with hooks of docs/extending/loop.md"
    ),
    "BaseFinetuning": rewrite('write Freeze("net.4.*", until="5ep") for each part, of paceline.callbacks'),
    "BackboneFinetuning": rewrite('write Freeze("backbone.*", until="5ep"), of paceline.callbacks'),
    "BasePredictionWriter": rewrite(
        "subclass Callback: on_predict_step_end(self, trainer, prediction, batch), on_predict_end"
    ),
    "Timer": rewrite("write Trainer(max_time=...); Timer of paceline.callbacks has seconds by phase"),
    "ThroughputMonitor": rewrite("write Throughput(), of paceline.callbacks"),
    "SpikeDetection": rewrite("write LossSpikes(), of paceline.callbacks"),
    "OnExceptionCheckpoint": rewrite("leave it out: Checkpoint(save_on_exception=True) is the default"),
    "Checkpoint": rewrite("subclass Callback of paceline.callbacks, and call trainer.save_checkpoint"),
    "ProgressBar": rewrite("subclass Progress of paceline.callbacks"),
    "ModelPruning": rewrite("call torch.nn.utils.prune in a hook of your own"),
    "LearningRateFinder": rewrite(_LR),
    "BatchSizeFinder": rewrite(_BATCH),
    "Tuner": rewrite(f"{_LR}, or paceline.tools.find_batch_size(trainer, module, dataloader)"),
    "WandbLogger": rewrite(
        "write WandB(project=..., name=...), of paceline.callbacks: docs/guides/trackers.md"
    ),
    "MLFlowLogger": rewrite("write MLflow(experiment=...), of paceline.callbacks: docs/guides/trackers.md"),
    **all_of(
        "CometLogger NeptuneLogger LitLogger",
        rewrite("subclass Logger of paceline.callbacks: docs/guides/logging.md"),
    ),
    "LightningCLI": rewrite("`paceline fit` with the files that --write makes of its YAML"),
    **all_of("Fabric LightningLite", rewrite("write a TrainModule; its training_step is your loop's body")),
    "rank_zero_only": rewrite("write if self.trainer.is_global_zero: in its place"),
    **all_of("rank_zero_info rank_zero_warn rank_zero_debug rank_zero_deprecation", rewrite(_LINE)),
    "utilities.ModelSummary": rewrite("leave it out: a fit prints this table first"),
    "grad_norm": rewrite("write callbacks=[Norms()], of paceline.callbacks"),
    "MisconfigurationException": rewrite("mistakes raise paceline.PacelineError"),
    **all_of("OptimizerCallable LRSchedulerCallable", _CALLABLE),
    **all_of(
        "STEP_OUTPUT OptimizerLRScheduler EVAL_DATALOADERS TRAIN_DATALOADERS EPOCH_OUTPUT "
        "LRSchedulerTypeUnion",
        _TYPE,
    ),
    "LightningOptimizer": rewrite("it is a torch.optim.Optimizer", "torch.optim.Optimizer"),
    "metrics": rewrite("import the metric from torchmetrics"),
}
OTHER = "it has no counterpart here: it runs while lightning is installed, or leave it out"
_RANKS = "lightning_utilities.core.rank_zero"  # which the import of lightning sets
_MODULES = (
    "pytorch callbacks loggers utilities strategies profilers plugins tuner trainer core types fabric"
)

LIGHTNING = Library(
    "lightning",
    ("lightning.pytorch", "lightning.fabric", "lightning_fabric", "pytorch_lightning", "lightning", _RANKS),
    OWNERS,
    NAMES,
    modules=tuple(_MODULES.split()),
    ignored=("demos", "data", "__version__"),
    other=OTHER,
)
