"""Composer: its Trainer, ComposerModel, callbacks and events, algorithms, loggers."""

from __future__ import annotations

from .tables import Entry, Library, Owner, all_of, changes, rewrite, runs

_DURATION = '"1ep" is as it is, "100ba" is 100 or "100st"'
_CHECKPOINT = "of callbacks=[Checkpoint(...)], of paceline.callbacks"
_STEP = "write training_step(self, batch), which returns the loss"

_ARGUMENTS: dict[str, Entry] = {
    "model": rewrite("give it to fit: trainer.fit(module, ...)"),
    "train_dataloader": rewrite("give it to fit: trainer.fit(module, train_dataloader)"),
    "eval_dataloader": rewrite("give it to fit, as val_dataloader: one, or a dict of several"),
    "train_dataloader_label": rewrite("leave it out: training values begin with train/"),
    "optimizers": rewrite("return them from configure_optimizers"),
    "schedulers": rewrite("return them from configure_optimizers: docs/guides/schedules.md"),
    "step_schedulers_every_batch": rewrite('return "interval": "step" in configure_optimizers'),
    "scale_schedule_ratio": rewrite("leave it out: schedules take their length from the run"),
    "max_duration": rewrite('write max_epochs=, max_steps= or max_time=: "10ep" is max_epochs=10'),
    "algorithms": rewrite("leave it out: a callback, paceline.mixing, or a line of the module does it"),
    "algorithm_passes": rewrite("leave it out"),
    "callbacks": rewrite("write callbacks of paceline.callbacks"),
    "loggers": rewrite("write loggers of paceline.callbacks: WandB(), MLflow(), TensorBoard()"),
    "run_name": rewrite("write name="),
    "progress_bar": rewrite("write progress="),
    "log_to_console": rewrite("leave it out: log points are printed where there is no bar"),
    "console_log_interval": rewrite("write log_every="),
    "console_stream": rewrite("leave it out"),
    "log_traces": rewrite("leave it out"),
    "eval_interval": rewrite(f"write validate_every=: {_DURATION}"),
    "eval_subset_num_batches": rewrite("write limit_val_batches=; -1 is None"),
    "train_subset_num_batches": rewrite("write limit_train_batches=; -1 is None"),
    "spin_dataloaders": rewrite("leave it out: a resumed run reads what it has not seen"),
    "precision": rewrite('"amp_bf16" is "bf16", "amp_fp16" is "fp16", "fp32" is "32"'),
    "precision_config": rewrite("write precision=, with an object of paceline.strategies"),
    "device": rewrite("write accelerator="),
    "device_train_microbatch_size": rewrite(
        "the DataLoader's batch_size is the micro-batch: global_batch_size= is the whole"
    ),
    "grad_accum": rewrite("write accumulate="),
    "auto_microbatching": rewrite('write Trainer(batch_size="auto")'),
    "seed": runs(),
    "deterministic_mode": rewrite("write deterministic="),
    "dist_timeout": rewrite("write timeouts="),
    "ddp_sync_strategy": rewrite("write DDP(...), of paceline.strategies, as strategy="),
    "parallelism_config": rewrite('write strategy="fsdp", or FSDP(...) of paceline.strategies'),
    "fsdp_config": rewrite('write strategy="fsdp", or FSDP(...) of paceline.strategies'),
    "deepspeed_config": rewrite(
        'write strategy="deepspeed_stage_2", or DeepSpeed(...) of paceline.strategies'
    ),
    "save_folder": rewrite("write run_dir="),
    "save_interval": rewrite(f"write every=, {_CHECKPOINT}: {_DURATION}"),
    "save_num_checkpoints_to_keep": rewrite(f"write keep=, {_CHECKPOINT}; -1 is None"),
    "save_weights_only": rewrite(f"write weights_only=, {_CHECKPOINT}"),
    **all_of(
        "save_filename save_latest_filename save_overwrite save_ignore_keys save_metrics",
        rewrite("leave it out: each run has a new folder, and checkpoints are named by their step"),
    ),
    "load_path": rewrite("write trainer.fit(..., resume=path)"),
    "autoresume": rewrite('write trainer.fit(..., resume="auto")'),
    "load_weights_only": rewrite("write Net.load_from_checkpoint(path), and give the module to fit"),
    **all_of(
        "load_object_store load_strict_model_weights load_progress_bar load_ignore_keys "
        "load_exclude_algorithms load_fsdp_monolith_rank0_only",
        rewrite("leave it out: checkpoints are read from a folder, whole"),
    ),
    "python_log_level": rewrite("leave it out"),
    "profiler": rewrite("write profile=True, or profile=Profiler(...) of paceline.callbacks"),
    "compile_config": rewrite("write compile=True, or a dict of torch.compile's arguments"),
}
_FIT: dict[str, Entry] = {
    **_ARGUMENTS,
    "duration": rewrite('write Trainer(max_epochs=...), and fit(..., resume="auto") for more'),
    "reset_time": rewrite("leave it out: a fit without resume= begins at step 0"),
}
_MEMBERS: dict[str, Entry] = {
    "fit": rewrite("give it what it trains: trainer.fit(module, train_dataloader, val_dataloader)"),
    "eval": rewrite("write trainer.validate(module, dataloader), which returns the values"),
    "predict": rewrite("write trainer.predict(module, dataloader)"),
    "close": rewrite("leave it out: fit closes what it opened"),
    "save_checkpoint": changes("it writes a folder, on all ranks together"),
    "save_checkpoint_to_save_folder": rewrite("write trainer.save_checkpoint(path)"),
    "export_for_inference": rewrite("write trainer.export(folder)"),
    "saved_checkpoints": rewrite("trainer.run.latest and trainer.run.best are paths"),
    "state": rewrite("trainer.global_step, trainer.epoch, trainer.metrics and trainer.module say it"),
    "logger": rewrite("write trainer.log(name, value)"),
}
_MODEL_METHODS: dict[str, Entry] = {
    "forward": changes("it gets what you call it with, not the batch: steps call self(x)"),
    "loss": rewrite(_STEP),
    "eval_forward": rewrite("write validation_step(self, batch)"),
    "get_metrics": rewrite("assign metrics in __init__, update and log them in the steps"),
    "update_metric": rewrite("write metric.update(...) and self.log(name, metric) in validation_step"),
    "flops_per_batch": rewrite("leave it out: Throughput, of paceline.callbacks, counts them"),
}
_STATE = "trainer.global_step, trainer.epoch, trainer.metrics and trainer.module take the place of state"
_EVENTS: dict[str, str] = {
    "init": "on_setup(self, trainer, stage)",
    "before_load": "on_setup(self, trainer, stage)",
    "after_load": "on_load_checkpoint(self, trainer, state)",
    "iteration_start": "on_train_epoch_start(self, trainer)",
    "iteration_end": "on_train_epoch_end(self, trainer)",
    "fit_start": "on_fit_start(self, trainer)",
    "fit_end": "on_fit_end(self, trainer)",
    "epoch_start": "on_train_epoch_start(self, trainer)",
    "epoch_end": "on_train_epoch_end(self, trainer)",
    "epoch_checkpoint": "on_step_boundary(self, trainer)",
    "batch_start": "on_step_start(self, trainer, batches)",
    "batch_end": "on_step_end(self, trainer, outputs)",
    "batch_checkpoint": "on_step_boundary(self, trainer)",
    "after_train_batch": "on_before_optimizer_step(self, trainer, optimizer)",
    "eval_start": "on_validation_start(self, trainer)",
    "eval_end": "on_validation_end(self, trainer)",
    "eval_batch_end": "on_validation_step_end(self, trainer, output, batch, batch_idx)",
    "eval_after_forward": "on_validation_step_end(self, trainer, output, batch, batch_idx)",
    "predict_start": "on_predict_start(self, trainer)",
    "predict_end": "on_predict_end(self, trainer)",
    "predict_batch_end": "on_predict_step_end(self, trainer, output, batch, batch_idx)",
    "close": "on_teardown(self, trainer, stage)",
    "post_close": "on_teardown(self, trainer, stage)",
}
_IN_STEP = (
    "after_dataloader before_train_batch before_forward after_forward before_loss after_loss "
    "before_backward after_backward"
)
_IN_EVALUATION = (
    "eval_batch_start eval_before_forward before_eval_batch eval_after_dataloader eval_before_all "
    "eval_after_all eval_standalone_start eval_standalone_end before_dataloader "
    "predict_batch_start predict_before_forward predict_after_forward"
)
_HOOKS: dict[str, Entry] = {
    **{event: rewrite(f"write {hook}; {_STATE}") for event, hook in _EVENTS.items()},
    **all_of(_IN_STEP, rewrite("write it at its place in training_step")),
    **all_of(_IN_EVALUATION, rewrite("write it at its place in validation_step or predict_step")),
    "run_event": rewrite("write the hooks one by one: docs/extending/loop.md"),
    "state_dict": runs(),
    "load_state_dict": runs(),
}
_TRAINER = Owner(
    rewrite("write Trainer(...), of paceline; what it trains is given to fit"),
    arguments=_ARGUMENTS,
    positional=("model", "train_dataloader"),
    members=_MEMBERS,
    calls={"fit": _FIT},
    other_argument="no such argument here; the Trainer's arguments are in docs/api/README.md",
)
_MODEL = Owner(rewrite(f"subclass TrainModule, of paceline; {_STEP}"), methods=_MODEL_METHODS)
_WRAPPED = Owner(
    rewrite("subclass TrainModule, of paceline, with the model as an attribute"),
    arguments={
        "model": rewrite("assign it in __init__: self.model = ..."),
        "tokenizer": rewrite("save it yourself, beside trainer.export(folder)"),
        "metrics": rewrite("assign them in __init__, update and log them in training_step"),
        "eval_metrics": rewrite("assign them in __init__, update and log them in validation_step"),
        "use_logits": rewrite("take output.logits in the step"),
    },
)
_CALLBACK = Owner(
    rewrite("from paceline.callbacks import Callback; its hooks get (self, trainer, ...)"), methods=_HOOKS
)
_EVENT = Owner(
    rewrite("write hooks, which are methods: docs/extending/loop.md"),
    members={event.upper(): entry for event, entry in _HOOKS.items() if event != "run_event"},
)
_TIME = rewrite('write a duration: 100 steps, "2ep", "30min"')
_OF_CALLBACKS = "of paceline.callbacks"

_ALGORITHMS = (
    "Alibi AugMix BlurPool ChannelsLast ColOut CutOut Factorize FusedLayerNorm GatedLinearUnits "
    "GhostBatchNorm LayerFreezing LowPrecisionGroupNorm LowPrecisionLayerNorm NoOpModel "
    "ProgressiveResizing RandAugment SAM SelectiveBackprop SeqLengthWarmup SqueezeExcite StochasticDepth "
    "WeightStandardization"
)
_MODULES = "algorithms callbacks core loggers models optim trainer utils metrics functional"
COMPOSER = Library(
    "composer",
    ("composer",),
    {
        "Trainer": _TRAINER,
        "ComposerModel": _MODEL,
        "ComposerClassifier": _WRAPPED,
        "HuggingFaceModel": _WRAPPED,
        "Callback": _CALLBACK,
        "Algorithm": Owner(
            _CALLBACK.entry, methods={**_HOOKS, **all_of("match apply", _HOOKS["run_event"])}
        ),
        "Event": _EVENT,
    },
    {
        "Evaluator": rewrite("give fit a dict of dataloaders: their names are part of the metrics' names"),
        "DataSpec": rewrite(
            "give fit the DataLoader; transfer_batch_to_device and its neighbours change batches"
        ),
        "State": rewrite(_STATE),
        **all_of("Time Timestamp TimeUnit", _TIME),
        "Logger": rewrite("write trainer.log(name, value) in a hook"),
        **all_of("EMA SWA EarlyStopper", rewrite(f"write EMA, SWA or EarlyStopping, {_OF_CALLBACKS}")),
        "CheckpointSaver": rewrite(f"write Checkpoint(every=..., keep=...), {_OF_CALLBACKS}"),
        "LRMonitor": rewrite(
            f"write LearningRateMonitor(), {_OF_CALLBACKS}; log points have the rates anyway"
        ),
        "SpeedMonitor": rewrite(f"write Throughput(), {_OF_CALLBACKS}"),
        "RuntimeEstimator": rewrite("leave it out: the bar has the time left"),
        **all_of("MemoryMonitor SystemMetricsMonitor", rewrite(f"write DeviceMonitor(), {_OF_CALLBACKS}")),
        "OptimizerMonitor": rewrite(f"write Norms(), {_OF_CALLBACKS}"),
        "NaNMonitor": rewrite('leave it out: nonfinite="raise" is the default'),
        "ThresholdStopper": rewrite(f"write EarlyStopping(stopping_threshold=...), {_OF_CALLBACKS}"),
        "ImageVisualizer": rewrite(f"write SampleImages(), {_OF_CALLBACKS}, or self.log_image"),
        "WandBLogger": rewrite(f"write WandB(project=...), {_OF_CALLBACKS}"),
        "MLFlowLogger": rewrite(f"write MLflow(experiment=...), {_OF_CALLBACKS}"),
        "TensorboardLogger": rewrite(f"leave it out, or write TensorBoard(), {_OF_CALLBACKS}"),
        "FileLogger": rewrite("leave it out: log.txt and metrics.jsonl are in the run's folder"),
        "InMemoryLogger": rewrite("trainer.metrics has the latest values, Run(folder).metrics all"),
        **all_of(
            "CometMLLogger LoggerDestination",
            rewrite(f"subclass Logger, {_OF_CALLBACKS}: docs/guides/logging.md"),
        ),
        "ProgressBarLogger": rewrite("leave it out: the bar is a default callback"),
        "LabelSmoothing": rewrite("give label_smoothing= to the loss in training_step"),
        "GradientClipping": rewrite("write Trainer(clip_grad_norm=...), or clip_grad_value="),
        **all_of("MixUp CutMix", rewrite("write MixUp or CutMix of paceline.mixing")),
        "GyroDropout": rewrite("write it into the model"),
        **all_of(
            _ALGORITHMS, rewrite("write it into the model, the data or a callback: no algorithms here")
        ),
        **all_of(
            "ConstantScheduler LinearScheduler LinearWithWarmupScheduler CosineAnnealingScheduler "
            "CosineAnnealingWithWarmupScheduler ConstantWithWarmupScheduler PolynomialScheduler "
            "MultiStepScheduler StepScheduler ExponentialScheduler ComposerScheduler",
            rewrite("return a schedule of paceline.schedules, or torch's, from configure_optimizers"),
        ),
        **all_of(
            "DecoupledAdamW DecoupledSGDW",
            changes("it is an optimizer like any other: return it from configure_optimizers"),
        ),
        **all_of("CrossEntropy LossMetric MIoU Dice LanguagePerplexity", runs("a torchmetrics object")),
        "reproducibility": rewrite("write seed_everything(seed), of paceline, and Trainer(seed=...)"),
        "seed_all": rewrite("write seed_everything(seed), of paceline, and Trainer(seed=...)"),
        "dist": rewrite(
            "write trainer.rank, trainer.world_size, trainer.ranks.barrier() and ranks.gather_data()"
        ),
        **all_of("get_device ensure_tuple", rewrite("leave it out: the module is on the run's device")),
    },
    modules=tuple(_MODULES.split()),
    ignored=("datasets", "__version__"),
    other="it has no counterpart here: it runs while composer is installed, or leave it out",
)
