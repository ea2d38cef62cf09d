"""Accelerate: the Accelerator, its plugins, and what is imported beside them."""

from __future__ import annotations

from .tables import Entry, Library, Owner, all_of, changes, rewrite, runs

_STEP = "the body of your loop becomes training_step(self, batch), which returns the loss"
_ONE = "inside a module or a hook it is"
_GATHER = (
    "log the value or the torchmetrics object with self.log: it is reduced over ranks, each sample once"
)
_STRATEGY = "an object of paceline.strategies, or a name: strategy="

_ARGUMENTS: dict[str, Entry] = {
    "mixed_precision": rewrite('write Trainer(precision="bf16"), or "fp16"'),
    "gradient_accumulation_steps": rewrite("write Trainer(accumulate=...)"),
    "gradient_accumulation_plugin": rewrite("write Trainer(accumulate=...)"),
    "cpu": rewrite('write Trainer(accelerator="cpu")'),
    "log_with": rewrite(
        "write Trainer(loggers=[...]), with WandB, MLflow or TensorBoard of paceline.callbacks"
    ),
    "project_dir": rewrite("write Trainer(run_dir=...)"),
    "project_config": rewrite("write Trainer(run_dir=...), and callbacks=[Checkpoint(keep=...)]"),
    "deepspeed_plugin": rewrite(
        'write Trainer(strategy="deepspeed_stage_2"), or DeepSpeed(...) of paceline.strategies'
    ),
    "deepspeed_plugins": rewrite('write Trainer(strategy="deepspeed_stage_2"), for one model in a run'),
    "fsdp_plugin": rewrite('write Trainer(strategy="fsdp"), or FSDP(...) of paceline.strategies'),
    "kwargs_handlers": rewrite("write DDP(...), of paceline.strategies, as Trainer(strategy=...)"),
    "dynamo_backend": rewrite("write Trainer(compile=True)"),
    "dynamo_plugin": rewrite("write Trainer(compile={...}), with torch.compile's arguments"),
    "device_placement": rewrite("leave it out: module and batches are on the device"),
    "split_batches": rewrite("write Trainer(global_batch_size=...): the batch of all ranks together"),
    "dataloader_config": rewrite("leave it out: the samples of any loader are divided among the ranks"),
    "step_scheduler_with_optimizer": rewrite(
        'return "interval": "step" or "epoch" in configure_optimizers'
    ),
    "rng_types": rewrite("leave it out: all generators are seeded, and saved in checkpoints"),
    "even_batches": rewrite("leave it out: every sample counts once"),
    "dispatch_batches": rewrite("leave it out: the samples of any loader are divided among the ranks"),
    **all_of(
        "torch_tp_plugin parallelism_config",
        rewrite("write strategy=FSDP(tensor=...) for tensor parallelism; there is no context parallelism"),
    ),
    **all_of(
        "megatron_lm_plugin",
        rewrite("Megatron-LM is not driven from here: strategy=FSDP(tensor=...) splits layers over ranks"),
    ),
}

_MEMBERS: dict[str, Entry] = {
    "prepare": rewrite(
        "leave it out: give the loaders to trainer.fit, return the optimizer from configure_optimizers"
    ),
    **all_of(
        "prepare_model prepare_optimizer prepare_scheduler prepare_data_loader",
        rewrite("leave it out: fit prepares the module, its optimizers and its loaders"),
    ),
    "backward": rewrite(f"{_STEP}; self.manual_backward(loss) where you optimize manually"),
    "accumulate": rewrite(f"write Trainer(accumulate=...); {_STEP}"),
    "no_sync": rewrite("leave it out: gradients are reduced once a step"),
    "sync_gradients": rewrite(
        "leave it out: training_step is one micro-batch, on_step_end one optimizer step"
    ),
    "clip_grad_norm_": rewrite("write Trainer(clip_grad_norm=...)"),
    "clip_grad_value_": rewrite("write Trainer(clip_grad_value=...)"),
    "unscale_gradients": rewrite("leave it out: gradients are unscaled in on_before_optimizer_step"),
    "optimizer_step_was_skipped": rewrite("trainer.counters.skipped_steps counts them"),
    "autocast": rewrite("leave it out: steps run under the Trainer's precision"),
    "gather": rewrite(f"{_ONE} self.all_gather(value), stacked along a new dimension; {_GATHER}"),
    "gather_for_metrics": rewrite(_GATHER),
    "reduce": rewrite(_GATHER),
    "pad_across_processes": rewrite("leave it out: what self.log gets is reduced over ranks"),
    "save_state": rewrite("write callbacks=[Checkpoint(every=...)], or trainer.save_checkpoint(path)"),
    "load_state": rewrite(
        'write trainer.fit(..., resume="auto"); load_from_checkpoint reads weights of Accelerate'
    ),
    "save": rewrite("write trainer.export(folder), or torch.save where trainer.is_global_zero"),
    "save_model": rewrite("write trainer.export(folder): model.safetensors and config.json"),
    "get_state_dict": rewrite(
        "write trainer.export(folder), or module.state_dict() after load_from_checkpoint"
    ),
    "unwrap_model": rewrite("leave it out: the module is never wrapped"),
    "register_for_checkpointing": rewrite(
        "write state_dict and load_state_dict, in a callback of your own"
    ),
    **all_of(
        "register_load_state_pre_hook register_save_state_pre_hook",
        rewrite("write on_load_checkpoint and on_save_checkpoint, in the module or a callback"),
    ),
    "skip_first_batches": rewrite("leave it out: a resumed run continues in the middle of an epoch"),
    "print": rewrite(f"{_ONE} self.print(...)"),
    "log": rewrite("write self.log(name, value), or self.log_dict(values)"),
    "init_trackers": rewrite("write Trainer(name=...): hparams and config are recorded by themselves"),
    "get_tracker": rewrite("take the logger from trainer.callbacks"),
    "end_training": rewrite("leave it out: fit closes its loggers"),
    "free_memory": rewrite("leave it out"),
    "clear": rewrite("leave it out"),
    "wait_for_everyone": rewrite("write trainer.ranks.barrier()"),
    "is_main_process": rewrite(f"{_ONE} self.trainer.is_global_zero"),
    "is_local_main_process": rewrite(f"{_ONE} self.trainer.is_global_zero, one process in all"),
    "is_last_process": rewrite(f"{_ONE} self.trainer.rank == self.trainer.world_size - 1"),
    "num_processes": rewrite(f"{_ONE} self.trainer.world_size"),
    "process_index": rewrite(f"{_ONE} self.trainer.rank"),
    "local_process_index": rewrite(f"{_ONE} self.trainer.rank, among all"),
    "device": rewrite(f"{_ONE} self.device"),
    "main_process_first": rewrite("write with trainer.ranks.main_process_first():"),
    "local_main_process_first": rewrite("write with trainer.ranks.main_process_first(per_node=True):"),
    **all_of(
        "on_main_process on_local_main_process on_process on_local_process on_last_process",
        rewrite("write trainer.ranks.on_rank_zero(function), or if trainer.is_global_zero:"),
    ),
    "set_trigger": rewrite('write trainer.stop("why"), which all ranks agree on'),
    "check_trigger": rewrite("trainer.stop_reason is None while the run continues"),
    "split_between_processes": rewrite("write predict_step, and trainer.predict(module, loader)"),
    "join_uneven_inputs": rewrite("leave it out: ranks have as many batches as each other"),
    "profile": rewrite("write Trainer(profile=True)"),
    "gradient_accumulation_steps": rewrite("write Trainer(accumulate=...)"),
    "mixed_precision": rewrite("the Trainer's precision= is in trainer.config"),
    "project_dir": rewrite("trainer.folder is the run's folder"),
    "logging_dir": rewrite("trainer.folder is the run's folder"),
    **all_of(
        "state distributed_type use_distributed",
        rewrite("trainer.strategy, trainer.world_size and trainer.rank say it"),
    ),
}

_CLOSED = "the Accelerator's work is the Trainer's here; docs/api/README.md lists what it has"
ACCELERATOR = Owner(
    rewrite(f"write a TrainModule and Trainer(...), of paceline; {_STEP}"),
    arguments=_ARGUMENTS,
    members=_MEMBERS,
    other_member=_CLOSED,
    other_argument=_CLOSED,
)
_RANKS = Owner(
    rewrite("write trainer.rank, trainer.world_size and trainer.is_global_zero, in a module or a hook"),
    members={
        name: _MEMBERS[name] for name in ("is_main_process", "num_processes", "process_index", "device")
    },
)

ACCELERATE = Library(
    "accelerate",
    ("accelerate",),
    {"Accelerator": ACCELERATOR, "PartialState": _RANKS, "AcceleratorState": _RANKS},
    {
        "set_seed": rewrite("write seed_everything(seed), of paceline, and Trainer(seed=...)"),
        "notebook_launcher": rewrite(
            "leave it out: Trainer(devices=...) starts the ranks of a script, and forks those of a notebook"
        ),
        "debug_launcher": rewrite('leave it out: Trainer(accelerator="cpu", devices=2) starts two ranks'),
        "set_numa_affinity": rewrite("write Trainer(numa_affinity=True)"),
        "get_logger": rewrite("write self.print(...), or trainer.log_line(...): rank 0, and log.txt"),
        "find_executable_batch_size": rewrite(
            "call paceline.tools.find_batch_size(trainer, module, loader)"
        ),
        "skip_first_batches": rewrite("leave it out: a resumed run continues in the middle of an epoch"),
        "ProjectConfiguration": rewrite("write Trainer(run_dir=...), and callbacks=[Checkpoint(keep=...)]"),
        "DeepSpeedPlugin": rewrite(f'write DeepSpeed(stage), {_STRATEGY}"deepspeed_stage_2"'),
        "FullyShardedDataParallelPlugin": rewrite(f'write FSDP(), {_STRATEGY}"fsdp"'),
        "DistributedDataParallelKwargs": rewrite(f'write DDP(...), {_STRATEGY}"ddp"'),
        "GradientAccumulationPlugin": rewrite("write Trainer(accumulate=...)"),
        "DataLoaderConfiguration": rewrite(
            "leave it out: the samples of any loader are divided among the ranks"
        ),
        "InitProcessGroupKwargs": rewrite("write Trainer(timeouts=...)"),
        "GradScalerKwargs": rewrite(
            "pass an AutocastFP16 of paceline.strategies as Trainer(precision=...)"
        ),
        "AutocastKwargs": rewrite("leave it out: steps run under the Trainer's precision"),
        "ProfileKwargs": rewrite("write Trainer(profile=Profiler(...)), of paceline.callbacks"),
        "TorchDynamoPlugin": rewrite("write Trainer(compile={...}), with torch.compile's arguments"),
        "LoggerType": rewrite("write Trainer(loggers=[...]), with loggers of paceline.callbacks"),
        "GeneralTracker": rewrite("subclass Logger of paceline.callbacks: docs/guides/logging.md"),
        "DistributedType": rewrite("trainer.strategy.name is the strategy"),
        "broadcast": rewrite("write trainer.ranks.broadcast(value)"),
        "broadcast_object_list": rewrite("write trainer.ranks.broadcast(value)"),
        "gather_object": rewrite("write trainer.ranks.gather_data(value)"),
        "gather": rewrite("write trainer.ranks.gather_data(value)"),
        "reduce": rewrite(_GATHER),
        "synchronize_rng_states": rewrite("leave it out: all generators are seeded"),
        **all_of(
            "init_empty_weights init_on_device infer_auto_device_map dispatch_model cpu_offload "
            "disk_offload load_checkpoint_and_dispatch load_checkpoint_in_model",
            changes("it is for inference; a model that fit trains is built whole, or in configure_model"),
        ),
        **all_of(
            "is_rich_available is_bf16_available is_torch_version extract_model_from_parallel", runs()
        ),
    },
    modules=("utils", "logging", "state", "tracking", "accelerator", "data_loader"),
    ignored=("test_utils", "commands"),
    other="it has no counterpart here: it runs while accelerate is installed, or leave it out",
)
