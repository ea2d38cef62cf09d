"""Arguments of other trainers' classes, answered with ours; the classes are in ``peer_names.py``."""

from __future__ import annotations

from .other_engines import CONTEXT, EXPERT, PIPELINE

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
        "refresh_rate": "every=..., the seconds between two lines",
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
        "half_life": "decay=0.5 ** (1 / half_life)",
        "device": _NOT_NEEDED,
    },
    "WeightAverage": {"avg_fn": "override combine in a subclass", "device": _NOT_NEEDED},
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
        "device_mesh": "HSDP(replicate=...) of paceline.strategies has two dimensions, tensor=... one more",
        **dict.fromkeys(("tp", "tp_size", "tensor_parallel", "tensor_parallel_size"), "tensor"),
        **dict.fromkeys(("cp", "cp_size", "context_parallel", "context_parallel_size"), CONTEXT),
        **dict.fromkeys(("pp", "pp_size", "pipeline_parallel", "pipeline_parallel_size"), PIPELINE),
        **dict.fromkeys(("ep", "ep_size", "expert_parallel", "expert_parallel_size"), EXPERT),
        "data_parallel_size": "remove it: it is the number of ranks, divided by tensor",
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
        "verbose": _NOT_NEEDED,
    },
}
"""Arguments of other trainers by the class or function of ours: an argument of ours, or a sentence."""
