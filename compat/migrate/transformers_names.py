"""The Trainer of transformers: its arguments, its methods, its callbacks. Models are used as they are."""

from __future__ import annotations

from ...other_trainers.arguments import OF_TRAINER
from .tables import Entry, Library, Owner, all_of, changes, rewrite, runs

_OPTIMIZER = "build the optimizer in configure_optimizers"
_SCHEDULE = "build the schedule in configure_optimizers, with trainer.total_steps: docs/guides/schedules.md"
_LOADER = "it is an argument of the DataLoader that you give to fit"
_ALWAYS = "leave it out"
_HUB = 'leave it out, and push the folder of trainer.export(folder, "model")'
_BATCH = "the DataLoader's batch_size is the micro-batch of one rank"
_MODEL = "call it on the model, in __init__ of the module"


def _peer(name: str, more: str = "") -> Entry:
    """An argument of the Trainer here: its name is in the table that the Trainer itself answers with."""
    ours = OF_TRAINER[name]
    shown = ours if ours.startswith("fit(") else f"Trainer({ours if '=' in ours else ours + '=...'})"
    return rewrite(f"write {shown}" + (f"; {more}" if more else ""))


ARGUMENTS: dict[str, Entry] = {
    "output_dir": _peer("output_dir", "a run is in run_dir/<name>/<n>"),
    "run_name": rewrite("write Trainer(name=...)"),
    "overwrite_output_dir": rewrite("leave it out: each run has a new folder"),
    "num_train_epochs": _peer("num_train_epochs"),
    "max_steps": rewrite("write Trainer(max_steps=...)"),
    "per_device_train_batch_size": rewrite(_BATCH),
    "per_device_eval_batch_size": rewrite(_BATCH),
    "train_batch_size": rewrite(_BATCH),
    "gradient_accumulation_steps": _peer("gradient_accumulation_steps"),
    "eval_accumulation_steps": rewrite("leave it out: metrics are reduced as they are logged"),
    "max_grad_norm": _peer("max_grad_norm", "its default was 1.0 there, and is none here"),
    **all_of(
        "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon optim optim_args "
        "optim_target_modules adafactor",
        rewrite(_OPTIMIZER),
    ),
    **all_of("lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio", rewrite(_SCHEDULE)),
    "label_smoothing_factor": rewrite("give it to the loss in training_step"),
    "average_tokens_across_devices": rewrite('return {"loss": loss, "weight": tokens} from training_step'),
    "bf16": _peer("bf16"),
    "fp16": _peer("fp16"),
    **all_of(
        "bf16_full_eval fp16_full_eval", rewrite("leave it out: evaluations run under the same precision")
    ),
    **all_of("fp16_opt_level fp16_backend half_precision_backend", rewrite(_ALWAYS)),
    "tf32": rewrite('write Trainer(fp32_precision="tf32")'),
    "gradient_checkpointing": rewrite(f"model.gradient_checkpointing_enable(): {_MODEL}"),
    "gradient_checkpointing_kwargs": rewrite(f"model.gradient_checkpointing_enable(...): {_MODEL}"),
    "activation_checkpointing": rewrite("write activation_checkpointing=True of a strategy's object"),
    "activation_checkpointing_kwargs": rewrite(
        "write activation_checkpointing=True of a strategy's object"
    ),
    **all_of(
        "torch_compile torch_compile_backend torch_compile_mode", rewrite("write Trainer(compile=...)")
    ),
    **all_of("use_liger_kernel liger_kernel_config use_cache", rewrite(f"apply it to the model: {_MODEL}")),
    "neftune_noise_alpha": rewrite("add the noise to the embeddings in training_step"),
    "torch_empty_cache_steps": rewrite("call torch.cuda.empty_cache() in on_step_end"),
    "auto_find_batch_size": rewrite('write Trainer(batch_size="auto")'),
    "logging_strategy": _peer("logging_steps"),
    "logging_steps": _peer("logging_steps"),
    "logging_first_step": rewrite("leave it out: step 1 is logged"),
    "logging_dir": rewrite("leave it out: TensorBoard's files are in tb/ of the run's folder"),
    "logging_nan_inf_filter": rewrite('write Trainer(nonfinite="skip"), or leave it out'),
    **all_of(
        "log_on_each_node log_level log_level_replica", rewrite("leave it out: rank 0 writes the log")
    ),
    "include_num_input_tokens_seen": rewrite(
        "write callbacks=[Throughput(tokens=...)], of paceline.callbacks"
    ),
    "include_tokens_per_second": rewrite("write callbacks=[Throughput(tokens=...)], of paceline.callbacks"),
    "disable_tqdm": _peer("disable_tqdm"),
    "report_to": rewrite("write Trainer(loggers=[...]), with WandB, MLflow, Trackio or TensorBoard"),
    **all_of(
        "project trackio_space_id trackio_bucket_id trackio_static_space_id", rewrite("write Trackio(...)")
    ),
    "eval_strategy": _peer("eval_strategy"),
    "evaluation_strategy": _peer("eval_strategy"),
    "eval_steps": _peer("eval_steps", "an int counts optimizer steps"),
    "do_train": rewrite("leave it out: call trainer.fit"),
    "do_eval": rewrite("leave it out: validation data given to fit is validated"),
    "do_predict": rewrite("leave it out: call trainer.predict"),
    "eval_on_start": rewrite("call trainer.validate(module, dataloader) before fit"),
    "eval_delay": rewrite("leave it out, or call trainer.validate at your own time"),
    **all_of(
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object include_for_metrics "
        "batch_eval_metrics include_inputs_for_metrics",
        rewrite("validation_step logs what you want to see"),
    ),
    "save_strategy": rewrite('write callbacks=[Checkpoint(every="1ep")], of paceline.callbacks'),
    "save_steps": _peer("save_steps"),
    "save_total_limit": _peer("save_total_limit"),
    "save_only_model": rewrite(
        "write callbacks=[Checkpoint(weights_only=True)]; such a run cannot be resumed"
    ),
    "save_safetensors": rewrite("leave it out: all tensors are written as safetensors"),
    "save_on_each_node": rewrite("leave it out: ranks write one folder"),
    "load_best_model_at_end": rewrite(
        "write Net.load_from_checkpoint(run.best), with Checkpoint(monitor=...)"
    ),
    "metric_for_best_model": rewrite('write callbacks=[Checkpoint(monitor="val/loss")]'),
    "greater_is_better": rewrite('write callbacks=[Checkpoint(monitor=..., mode="max")]'),
    "resume_from_checkpoint": rewrite('write trainer.fit(..., resume="auto"), or a path'),
    "ignore_data_skip": rewrite("leave it out: a resumed run continues in the middle of an epoch"),
    "restore_callback_states_from_checkpoint": rewrite("leave it out: they are always restored"),
    "enable_jit_checkpoint": rewrite("leave it out: SIGTERM saves a checkpoint"),
    **all_of(
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        rewrite(_HUB),
    ),
    "full_determinism": rewrite("write Trainer(deterministic=True)"),
    "seed": rewrite("write Trainer(seed=...), and seed_everything(seed) for the initial weights"),
    "data_seed": rewrite("write Trainer(seed=...)"),
    **all_of("use_cpu no_cuda", rewrite('write Trainer(accelerator="cpu")')),
    **all_of("accelerator_config parallelism_config", rewrite("write Trainer(strategy=...), and devices=")),
    **all_of(
        "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order",
        rewrite(_LOADER),
    ),
    "remove_unused_columns": rewrite(
        "remove columns that the model does not take from the dataset, or in the collator"
    ),
    "label_names": rewrite("training_step takes from the batch what it needs"),
    **all_of(
        "train_sampling_strategy length_column_name group_by_length",
        rewrite("give the DataLoader a sampler"),
    ),
    **all_of(
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph",
        rewrite("write DDP(...), of paceline.strategies, as Trainer(strategy=...)"),
    ),
    "ddp_backend": rewrite("leave it out: the device decides"),
    "ddp_timeout": rewrite("write Trainer(timeouts=...)"),
    "fsdp": rewrite('write Trainer(strategy="fsdp")'),
    "fsdp_config": rewrite("write FSDP(...), of paceline.strategies, as Trainer(strategy=...)"),
    "deepspeed": rewrite(
        'write Trainer(strategy="deepspeed_stage_2"), or DeepSpeed(...) of paceline.strategies'
    ),
    "debug": rewrite("leave it out, or write Trainer(debug=True): it checks collectives"),
    "skip_memory_metrics": rewrite("leave it out, or write callbacks=[DeviceMonitor()]"),
    "local_rank": rewrite("leave it out: ranks are found by themselves"),
    **all_of(
        "predict_with_generate generation_max_length generation_num_beams generation_config "
        "sortish_sampler",
        rewrite("call self.model.generate(...) in validation_step"),
    ),
}

_STEPS = "write the module's training_step: return self.model(**batch).loss"
_CONSTRUCTOR: dict[str, Entry] = {
    "model": rewrite("assign it in __init__ of a TrainModule: self.model = ..."),
    "model_init": rewrite("build the model in __init__ of a TrainModule"),
    "args": rewrite("they are arguments of Trainer, of the DataLoader and of the optimizer here"),
    "data_collator": rewrite("give it to the DataLoader: collate_fn=..."),
    "train_dataset": rewrite("give fit a DataLoader over it"),
    "eval_dataset": rewrite("give fit a DataLoader over it, as val_dataloader"),
    "compute_metrics": rewrite("update metrics in validation_step, and log them with self.log"),
    "preprocess_logits_for_metrics": rewrite("write it in validation_step"),
    "compute_loss_func": rewrite("compute the loss in training_step"),
    "callbacks": rewrite("write callbacks of paceline.callbacks: Trainer(callbacks=[...])"),
    "optimizers": rewrite("return them from configure_optimizers"),
    "optimizer_cls_and_kwargs": rewrite(_OPTIMIZER),
    **all_of("tokenizer processing_class", rewrite("save it yourself, beside trainer.export(folder)")),
}
_MEMBERS: dict[str, Entry] = {
    "train": rewrite(
        'write trainer.fit(module, train_dataloader, val_dataloader); resume="auto" continues a run'
    ),
    "evaluate": rewrite('write trainer.validate(module, dataloader): {"val/loss": ...}'),
    "predict": rewrite("write trainer.predict(module, dataloader), with predict_step"),
    "save_model": rewrite('write trainer.export(folder, "model"), which from_pretrained reads'),
    "save_state": rewrite("leave it out: Checkpoint saves all of the run"),
    "save_metrics": rewrite("leave it out: metrics.jsonl has them"),
    "log_metrics": rewrite("leave it out: the log has them"),
    "metrics_format": rewrite("leave it out: the log has them"),
    "log": rewrite("write self.log(name, value) in a step or hook"),
    "push_to_hub": rewrite(_HUB),
    "create_model_card": rewrite(_ALWAYS),
    "hyperparameter_search": rewrite(
        "call fit in a loop of your own; Trainer(run_dir=None) writes nothing"
    ),
    **all_of(
        "add_callback pop_callback remove_callback", rewrite("pass all of them as Trainer(callbacks=[...])")
    ),
    **all_of("is_world_process_zero is_local_process_zero", rewrite("write trainer.is_global_zero")),
    **all_of(
        "get_train_dataloader get_eval_dataloader get_test_dataloader",
        rewrite("keep the DataLoaders yourself"),
    ),
    "state": rewrite("trainer.global_step, trainer.epoch, trainer.run.best and trainer.metrics say it"),
    "model": rewrite("trainer.module is the TrainModule; the model is its attribute"),
    "optimizer": rewrite("trainer.optimizers is the list of them"),
    "lr_scheduler": rewrite("trainer.lr_schedulers is the list of them"),
    "args": rewrite('trainer.config["trainer"] has the Trainer\'s arguments'),
    "accelerator": rewrite("trainer.strategy, trainer.rank and trainer.world_size say it"),
    "callback_handler": rewrite("trainer.callbacks is the list of them"),
}
_METHODS: dict[str, Entry] = {
    "compute_loss": rewrite(_STEPS),
    "training_step": rewrite(_STEPS),
    "prediction_step": rewrite("write the module's validation_step, and predict_step"),
    "evaluation_loop": rewrite("write the module's validation_step; hooks are before and after it"),
    "evaluate": rewrite("write the module's validation_step"),
    **all_of(
        "create_optimizer create_optimizer_and_scheduler create_scheduler",
        rewrite("write configure_optimizers"),
    ),
    **all_of(
        "get_train_dataloader get_eval_dataloader get_test_dataloader",
        rewrite("write train_dataloader, val_dataloader and test_dataloader of a DataModule"),
    ),
    "log": rewrite("subclass Logger of paceline.callbacks: its one method is write(row)"),
    "save_model": rewrite("write a callback, with trainer.export(folder)"),
    "get_decay_parameter_names": rewrite("write decay_groups(module, ...), of paceline.parameter_groups"),
}
_HOOKS: dict[str, Entry] = {
    "on_train_begin": rewrite("write on_fit_start(self, trainer)"),
    "on_train_end": rewrite("write on_fit_end(self, trainer)"),
    "on_init_end": rewrite("write on_setup(self, trainer, stage)"),
    "on_epoch_begin": rewrite("write on_train_epoch_start(self, trainer)"),
    "on_epoch_end": rewrite("write on_train_epoch_end(self, trainer)"),
    "on_step_begin": rewrite("write on_step_start(self, trainer, batches)"),
    "on_step_end": rewrite("write on_step_end(self, trainer, outputs)"),
    "on_substep_end": rewrite("write it at the end of training_step, which is one micro-batch"),
    "on_pre_optimizer_step": rewrite("write on_before_optimizer_step(self, trainer, optimizer)"),
    "on_optimizer_step": rewrite("write on_step_end(self, trainer, outputs)"),
    "on_evaluate": rewrite("write on_validation_end(self, trainer): trainer.metrics has the values"),
    "on_predict": rewrite("write on_predict_end(self, trainer)"),
    "on_prediction_step": rewrite("write on_validation_step_end(self, trainer, output, batch, batch_idx)"),
    "on_save": rewrite("write on_save_checkpoint(self, trainer, state)"),
    "on_log": rewrite("subclass Logger of paceline.callbacks: its one method is write(row)"),
    "on_push_begin": rewrite("leave it out"),
}
_ARGS = Owner(
    rewrite("write Trainer(...), of paceline, with arguments of its own names"),
    arguments=ARGUMENTS,
    positional=("output_dir",),
    other_argument="no such argument here; the Trainer's arguments are in docs/api/README.md",
)
_TRAINER = Owner(
    rewrite("write a TrainModule around the model, and Trainer(...), of paceline"),
    arguments=_CONSTRUCTOR,
    positional=("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    members=_MEMBERS,
    methods=_METHODS,
)
_CALLBACK = Owner(
    rewrite("from paceline.callbacks import Callback; its hooks get (self, trainer, ...)"),
    methods=_HOOKS,
    other_method="it would never be called here: docs/extending/loop.md has every hook",
)
_STOPPING = Owner(
    rewrite('write EarlyStopping("val/loss", patience=...), of paceline.callbacks'),
    positional=("early_stopping_patience", "early_stopping_threshold"),
    arguments={
        "early_stopping_patience": rewrite("it is called patience here"),
        "early_stopping_threshold": rewrite("it is called min_delta here"),
    },
)
_ONLY_TYPE = rewrite("leave it out: hooks get the trainer alone, with its counters and metrics")

TRANSFORMERS = Library(
    "transformers",
    ("transformers",),
    {
        "Trainer": _TRAINER,
        "Seq2SeqTrainer": _TRAINER,
        "TrainingArguments": _ARGS,
        "Seq2SeqTrainingArguments": _ARGS,
        "TrainerCallback": _CALLBACK,
        "EarlyStoppingCallback": _STOPPING,
    },
    {
        "EvalPrediction": rewrite("validation_step has the outputs of each batch"),
        **all_of(
            "TrainerControl TrainerState PrinterCallback ProgressCallback DefaultFlowCallback", _ONLY_TYPE
        ),
        "HfArgumentParser": changes("it has no TrainingArguments to read; parse arguments of your own"),
        "set_seed": rewrite("write seed_everything(seed), of paceline, and Trainer(seed=...)"),
        "enable_full_determinism": rewrite("write Trainer(deterministic=True)"),
        "get_last_checkpoint": rewrite('write trainer.fit(..., resume="auto")'),
        **all_of(
            "get_scheduler get_linear_schedule_with_warmup get_cosine_schedule_with_warmup "
            "get_constant_schedule_with_warmup DataCollatorWithPadding DataCollatorForLanguageModeling "
            "DataCollatorForSeq2Seq default_data_collator",
            runs(),
        ),
    },
)
