"""Lightning's Trainer: its arguments, its attributes, its methods."""

from __future__ import annotations

from ....other_trainers.arguments import NEEDED_BY_NONE, OF_TRAINER
from ..tables import Entry, Owner, all_of, changes, dropped, imported, renamed, rewrite, runs

_ALL_RANKS = "an int counts the batches of all ranks together here, those of each rank there"
_STEPS = "a part of an epoch is a duration here, and an int counts optimizer steps"
_NO_SUCH = "no such argument here; the Trainer's arguments are in docs/api/README.md"


def _peers(*names: str) -> dict[str, Entry]:
    """Those that only have another name here."""
    return {name: renamed(OF_TRAINER[name]) for name in names}


TRAINER_ARGUMENTS: dict[str, Entry] = {
    **all_of(
        "callbacks devices num_nodes max_steps min_epochs min_steps fast_dev_run overfit_batches "
        "sync_batchnorm reload_dataloaders_every_n_epochs deterministic max_epochs precision "
        "accelerator strategy max_time",
        runs(),
    ),
    **all_of("limit_train_batches limit_val_batches", changes(_ALL_RANKS)),
    **all_of("limit_test_batches limit_predict_batches", changes(_ALL_RANKS)),
    **_peers("accumulate_grad_batches", "log_every_n_steps", "num_sanity_val_steps"),
    **_peers("default_root_dir", "enable_progress_bar", "enable_checkpointing", "logger"),
    **{name: dropped(why) for name, why in NEEDED_BY_NONE.items()},
    "gradient_clip_val": renamed("clip_grad_norm", "clip_grad_value where the algorithm is 'value'"),
    "gradient_clip_algorithm": dropped("clip_grad_norm and clip_grad_value are two arguments"),
    "check_val_every_n_epoch": rewrite(f"write {OF_TRAINER['check_val_every_n_epoch']}, a duration"),
    "val_check_interval": rewrite(f'write validate_every="0.25ep": {_STEPS}'),
    "enable_model_summary": changes("the table of parts is in the first lines unless progress=False", ""),
    "benchmark": rewrite("set torch.backends.cudnn.benchmark before fit, and leave the argument out"),
    "detect_anomaly": rewrite("call torch.autograd.set_detect_anomaly(True), and leave the argument out"),
    "profiler": rewrite("write profile=True, or profile=Profiler(...) of paceline.callbacks"),
    "barebones": rewrite(f"write {OF_TRAINER['barebones']}"),
    "plugins": rewrite("a Precision object goes into precision=, a Strategy object into strategy="),
    "enable_autolog_hparams": dropped("hparams are always recorded"),
    "model_registry": dropped("there is no registry; Run(folder).best is the best checkpoint"),
    "gpus": rewrite('write accelerator="gpu", devices=...'),
    "tpu_cores": rewrite("TPUs are not supported"),
    "num_processes": renamed("devices"),
    "distributed_backend": renamed("strategy"),
    "resume_from_checkpoint": rewrite("write fit(..., resume=path)"),
    "checkpoint_callback": renamed("checkpoint"),
    "auto_lr_find": rewrite(f"call {OF_TRAINER['auto_lr_find']}"),
    "auto_scale_batch_size": rewrite(f"call {OF_TRAINER['auto_scale_batch_size']}"),
    "progress_bar_refresh_rate": dropped("the bar is drawn a few times a second; progress=False has none"),
    "weights_summary": dropped("the table of parts is in the first lines unless progress=False"),
    "weights_save_path": renamed("run_dir"),
    "stochastic_weight_avg": rewrite("write callbacks=[SWA()], of paceline.callbacks"),
    "terminate_on_nan": dropped('nonfinite="raise" is the default'),
    "track_grad_norm": rewrite("write callbacks=[Norms()], of paceline.callbacks"),
    "multiple_trainloader_mode": rewrite(f"call {OF_TRAINER['multiple_trainloader_mode']}"),
    **all_of(
        "amp_backend amp_level auto_select_gpus flush_logs_every_n_steps move_metrics_to_cpu ipus "
        "process_position prepare_data_per_node truncated_bptt_steps log_gpu_memory",
        dropped("nothing here corresponds to it"),
    ),
}

_METRICS = "names are val/loss for val_loss, and values are plain floats"
_STAGE = 'trainer.stage is "fit", "validate", "test" or "predict"'
_FOLDER = "trainer.folder is the run's folder"

TRAINER_MEMBERS: dict[str, Entry] = {
    **all_of(
        "global_step is_global_zero world_size max_epochs max_steps optimizers callbacks interrupted "
        "strategy fit",
        runs(),
    ),
    **all_of("callback_metrics logged_metrics progress_bar_metrics", renamed("metrics", _METRICS)),
    "current_epoch": renamed("epoch"),
    "global_rank": renamed("rank"),
    "estimated_stepping_batches": renamed("total_steps", "None where the number of steps is unknown"),
    "num_training_batches": rewrite("trainer.steps_per_epoch counts optimizer steps, not batches"),
    "lightning_module": renamed("module"),
    "model": renamed("module"),
    "lr_scheduler_configs": rewrite("trainer.lr_schedulers are the schedulers themselves"),
    "log_dir": renamed("folder", "None where nothing is written"),
    "default_root_dir": rewrite(_FOLDER),
    "print": renamed("log_line"),
    "should_stop": rewrite('call trainer.stop("why")'),
    "sanity_checking": rewrite(
        "trainer.loop.is_fit_validation is False in the sanity pass, in which nothing is logged"
    ),
    "checkpoint_callback": rewrite(
        "trainer.run.best and trainer.run.latest are paths; keep a Checkpoint to ask it"
    ),
    "checkpoint_callbacks": rewrite("take them from trainer.callbacks"),
    "early_stopping_callback": rewrite("keep the EarlyStopping you made; it has best and wait"),
    "early_stopping_callbacks": rewrite("take them from trainer.callbacks"),
    "progress_bar_callback": rewrite("take it from trainer.callbacks"),
    "ckpt_path": rewrite("trainer.run.latest and trainer.run.best are paths"),
    "save_checkpoint": changes("it writes a folder, on all ranks together"),
    "validate": changes("it returns one dict of floats by full name, not a list of dicts"),
    "test": changes("it returns one dict of floats by full name, not a list of dicts"),
    "predict": changes("every rank gets the outputs of all of them, as one list in the data's order"),
    "logger": rewrite(
        "log with log, log_image, log_histogram, log_table, log_text of the module, trainer.module"
    ),
    "loggers": rewrite(
        "log with log, log_image, log_histogram, log_table, log_text of the module, trainer.module"
    ),
    **all_of("training validating testing predicting evaluating", rewrite(_STAGE)),
    "datamodule": rewrite("keep the DataModule in a variable of your own"),
    **all_of(
        "train_dataloader val_dataloaders test_dataloaders predict_dataloaders",
        rewrite("keep the dataloader in a variable of your own"),
    ),
    **all_of(
        "num_val_batches num_test_batches num_predict_batches num_sanity_val_batches is_last_batch",
        rewrite("take the length of the dataloader"),
    ),
    "accumulate_grad_batches": rewrite('trainer.config["trainer"]["accumulate"] is what the Trainer got'),
    **all_of("min_epochs min_steps", rewrite('trainer.config["trainer"] has what the Trainer got')),
    "precision": rewrite('trainer.config["trainer"]["precision"] is what the Trainer got'),
    "local_rank": rewrite(
        "trainer.rank is the rank among all; trainer.strategy.environment.local_rank that of the machine"
    ),
    "node_rank": rewrite("trainer.strategy.environment has the ranks of a machine"),
    "num_devices": rewrite("trainer.world_size counts all ranks"),
    "num_nodes": rewrite("trainer.world_size counts all ranks"),
    "accelerator": rewrite("trainer.strategy.device is the device"),
    "fit_loop": rewrite("trainer.epoch and trainer.global_step are what a loop counts here"),
    "tune": rewrite("call paceline.tools.find_learning_rate(trainer, module, loader), or find_batch_size"),
}

_DATALOADER = {"dataloaders": renamed("dataloader"), "model": renamed("module")}
_LAST = '"last" is "latest", and weights come from this trainer\'s checkpoints'
_RESUME = 'a path starts a new run from that checkpoint; "auto" and "latest" continue one'
_EVALUATION = {
    **_DATALOADER,
    "ckpt_path": renamed("weights", _LAST),
    "datamodule": runs(),
    "verbose": dropped("nothing is printed; the values are returned"),
    "weights_only": dropped("nothing in a pickle is run"),
}
TRAINER_CALLS = {
    "fit": {
        "model": renamed("module"),
        "train_dataloaders": renamed("train_dataloader"),
        "train_dataloader": runs(),
        "val_dataloaders": renamed("val_dataloader"),
        "datamodule": runs(),
        "ckpt_path": renamed("resume", _RESUME),
        "weights_only": dropped("nothing in a pickle is run"),
    },
    "validate": _EVALUATION,
    "test": _EVALUATION,
    "predict": {
        **_EVALUATION,
        "return_predictions": rewrite("write out=folder, or keep=False, for more than memory holds"),
    },
    "save_checkpoint": {
        "filepath": renamed("path"),
        "weights_only": runs(),
        "storage_options": dropped("it writes a folder"),
    },
}

TRAINER = Owner(
    imported("paceline.Trainer"),
    arguments=TRAINER_ARGUMENTS,
    members=TRAINER_MEMBERS,
    calls=TRAINER_CALLS,
    kinds={"lightning_module": "LightningModule", "model": "LightningModule"},
    other_member="the trainer has nothing of this name; docs/extending/trainer-view.md lists what it has",
    other_argument=_NO_SUCH,
)
