"""Names that other trainers use, answered with ours: of arguments of calls, of attributes, of methods."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from ...callbacks.trainer_view import CountersView, LoopView, RanksView
from ...common.argument_checks import refuse_unknown
from ...errors import nearest

_OPTIMIZER = "configure_optimizers of the module: return torch.optim.AdamW(self.parameters(), lr=...)"
TRAINER_PEERS = {
    "barebones": "progress=False, loggers=False, checkpoint=False",
    "profiler": "profile=True",
    "accumulate_grad_batches": "accumulate",
    "multiple_trainloader_mode": "fit(module, CombinedLoader(loaders, mode=...))",
    "gradient_accumulation_steps": "accumulate",
    "gradient_clip_val": "clip_grad_norm",
    "gradient_clip": "clip_grad_norm",
    "grad_clip": "clip_grad_norm",
    "clip_grad": "clip_grad_norm",
    "resume": "fit(resume=...)",
    "max_grad_norm": "clip_grad_norm",
    "gradient_clipping": "clip_grad_norm",
    "gradient_clip_algorithm": "clip_grad_norm or clip_grad_value",
    "check_val_every_n_epoch": 'validate_every="2ep"',
    "val_check_interval": 'validate_every="0.25ep"',
    "eval_steps": "validate_every",
    "eval_strategy": 'validate_every="1ep"',
    "log_every_n_steps": "log_every",
    "logging_steps": "log_every",
    "num_sanity_val_steps": "sanity_val_batches",
    "logger": "loggers",
    "report_to": "loggers",
    "enable_progress_bar": "progress",
    "disable_tqdm": "progress=False",
    "enable_checkpointing": "checkpoint",
    "enable_model_summary": "progress",
    "save_steps": "callbacks=[Checkpoint(every=...)]",
    "save_total_limit": "callbacks=[Checkpoint(keep=...)]",
    "default_root_dir": "run_dir",
    "output_dir": "run_dir",
    "num_train_epochs": "max_epochs",
    "epochs": "max_epochs",
    "mixed_precision": "precision",
    "fp16": 'precision="fp16"',
    "bf16": 'precision="bf16"',
    "tf32": 'fp32_precision="tf32"',
    "allow_tf32": 'fp32_precision="tf32"',
    "matmul_precision": 'fp32_precision="tf32"',
    "gpus": "devices",
    "num_processes": "devices",
    "enable_cpu_affinity": "numa_affinity=True",
    "numa_binding": "numa_affinity=True",
    "resume_from_checkpoint": "fit(resume=...)",
    "learning_rate": _OPTIMIZER,
    "lr": _OPTIMIZER,
    "weight_decay": _OPTIMIZER,
    "optimizer": _OPTIMIZER,
    "optimizers": _OPTIMIZER,
    "lr_scheduler": "configure_optimizers of the module: return optimizer, scheduler",
    "lr_schedulers": "configure_optimizers of the module: return optimizer, scheduler",
    "train_batch_size": "global_batch_size",
    "per_device_train_batch_size": "the DataLoader's batch_size",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(True)",
    "auto_lr_find": "paceline.tools.find_learning_rate(trainer, module, dataloader)",
    "auto_scale_batch_size": "paceline.tools.find_batch_size(trainer, module, dataloader)",
    "auto_find_batch_size": 'batch_size="auto"',
    "device_train_microbatch_size": 'batch_size="auto", or the DataLoader\'s batch_size',
    "benchmark": "torch.backends.cudnn.benchmark",
}
TRAINER_NEEDS_NONE = {
    "inference_mode": "evaluations run without gradients, under torch.no_grad()",
    "use_distributed_sampler": "the samples of any sampler are divided among the ranks, each counted once",
    "replace_sampler_ddp": "the samples of any sampler are divided among the ranks, each counted once",
}
_FIT_PEERS = {
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "weights": "resume",
    "train_dataloaders": "train_dataloader",
    "dataloader": "train_dataloader",
    "train_dataset": "train_dataloader, a DataLoader of it",
    "val_dataloaders": "val_dataloader",
    "eval_dataset": "val_dataloader",
    "eval_dataloader": "val_dataloader",
    "model": "pass it as module, the first argument",
    "weights_only": "remove it: nothing in a pickle is run",
    "duration": "Trainer(max_epochs=...) or Trainer(max_steps=...)",
    "batch_size": "the batch_size of the DataLoader",
}
_EVALUATION_PEERS = {
    "ckpt_path": "weights",
    "resume": "weights",
    "dataloaders": "dataloader",
    "val_dataloader": "dataloader",
    "test_dataloader": "dataloader",
    "eval_dataset": "dataloader",
    "eval_dataloader": "dataloader",
    "predict_dataloader": "dataloader",
    "model": "pass it as module, the first argument",
    "verbose": "remove it: the log has a line of the values",
    "weights_only": "remove it: nothing in a pickle is run",
    "return_predictions": "out=folder, or keep=False, for more predictions than memory holds",
}
_METRICS = 'metrics, whose names begin with their phase: "val/loss" for val_loss'
_LOGGERS = "log(name, value), and log_image, log_table ... of the module: they reach every logger"
_ATTRIBUTE_PEERS = {
    # names of before; _PARTS have the others
    "all_gather": "ranks.gather_data(value)",
    "optimizer_settings": 'loop.optimizer_settings("lr")',
    "roll_back": "checkpoints.roll_back(path)",
    "best": "run.best",
    "latest": "run.latest",
    "log_image": "module.log_image(name, image)",
    "log_histogram": "module.log_histogram(name, values)",
    "log_table": "module.log_table(name, columns, rows)",
    "log_text": "module.log_text(name, text)",
    "find_learning_rate": "paceline.tools.find_learning_rate(trainer, module, dataloader)",
    "find_batch_size": "paceline.tools.find_batch_size(trainer, module, dataloader)",
    "estimate": "paceline.tools.estimate(trainer, module, batch)",
    "replay": "paceline.tools.replay(trainer, module, dataloader, step=...)",
    "check_invariance": "paceline.tools.check_invariance(trainer, module, dataloader)",
    # Lightning
    "callback_metrics": _METRICS,
    "logged_metrics": _METRICS,
    "progress_bar_metrics": _METRICS,
    "current_epoch": "epoch",
    "should_stop": 'stop("why")',
    "estimated_stepping_batches": "total_steps",
    "num_training_batches": "steps_per_epoch, which counts optimizer steps",
    "lightning_module": "module",
    "model": "module",
    "log_dir": "folder",
    "default_root_dir": "folder",
    "global_rank": "rank",
    "local_rank": "strategy.environment.local_rank",
    "node_rank": "strategy.environment",
    "num_devices": "world_size",
    "device_ids": "strategy.device",
    "accelerator": "strategy.device",
    "precision": "strategy.precision",
    "logger": _LOGGERS,
    "loggers": _LOGGERS,
    "checkpoint_callback": "run.best and run.latest, the paths of checkpoints",
    "checkpoint_callbacks": "run.best and run.latest, the paths of checkpoints",
    "early_stopping_callback": "stop_reason, or the callback's own best and wait",
    "ckpt_path": "run.best and run.latest, the paths of checkpoints",
    "lr_scheduler_configs": "lr_schedulers",
    "sanity_checking": "loop.is_fit_validation, which is False in the sanity check",
    "training": 'stage, which is "fit"',
    "validating": 'stage, which is "validate"',
    "testing": 'stage, which is "test"',
    "predicting": 'stage, which is "predict"',
    "fit_loop": "global_step, epoch and counters.samples_in_epoch",
    "datamodule": "the DataModule that you passed",
    "train_dataloader": "steps_per_epoch, or the loader that you passed",
    "val_dataloaders": "the loader that you passed",
    "accumulate_grad_batches": "settings.accumulate",
    "gradient_clip_val": "settings.clip_grad_norm",
    "tune": "find_learning_rate or find_batch_size of paceline.tools",
    "tuner": "find_learning_rate or find_batch_size of paceline.tools",
    "lr_find": "paceline.tools.find_learning_rate(trainer, module, dataloader)",
    "scale_batch_size": "paceline.tools.find_batch_size(trainer, module, dataloader)",
    # Hugging Face
    "train": "fit(module, dataloader)",
    "evaluate": "validate(module, dataloader)",
    "eval": "validate(module, dataloader)",
    "save_model": "save_checkpoint(path)",
    "save_state": "save_checkpoint(path)",
    "load_state": "fit(module, dataloader, resume=path)",
    "args": "settings",
    "add_callback": "Trainer(callbacks=[...])",
    "push_to_hub": "export(folder), and upload it",
    "hyperparameter_search": "paceline.tools.find_learning_rate(trainer, module, dataloader)",
    "is_world_process_zero": "is_global_zero",
    "is_local_process_zero": "strategy.environment.local_rank == 0",
    "create_optimizer": "configure_optimizers of the module",
    "log_metrics": "publish(values)",
    # Accelerate
    "prepare": "fit(module, dataloader), which places the module, its optimizers and the data",
    "backward": "module.manual_backward(loss) under manual optimization",
    "clip_grad_norm_": "Trainer(clip_grad_norm=...)",
    "clip_grad_value_": "Trainer(clip_grad_value=...)",
    "gather": "ranks.gather_data(value)",
    "gather_for_metrics": "log(name, value), which reduces over all ranks; or ranks.gather_data(value)",
    "print": "log_line(text)",
    "accumulate": "Trainer(accumulate=...)",
    "autocast": "Trainer(precision=...)",
    "unwrap_model": "module, which is never wrapped",
    "wait_for_everyone": "ranks.barrier()",
    "is_main_process": "is_global_zero",
    "is_local_main_process": "strategy.environment.local_rank == 0",
    "process_index": "rank",
    "local_process_index": "strategy.environment.local_rank",
    "num_processes": "world_size",
    "device": "strategy.device",
    "init_trackers": "Trainer(loggers=...)",
    "end_training": "fit(module, dataloader), which closes what it opened",
    "skip_first_batches": "fit(module, dataloader, resume=path)",
}


_PARTS = {"ranks": RanksView, "counters": CountersView, "loop": LoopView}


class Method(NamedTuple):
    """A method that other trainers call, and a run here never does.

    Args:
        fix: What to write instead.
        arguments: Where given, it is theirs only if its arguments begin like this: the name is common.
    """

    fix: str
    arguments: tuple[str, ...] = ()


_EPOCH_END = "keep what the steps give on self, and use it in {}(self, trainer)"
_OPTIMIZERS = Method("def configure_optimizers(self) returns the optimizer, or optimizer and schedule")
MODULE_METHODS = {
    # Lightning
    "configure_gradient_clipping": Method(
        "Trainer(clip_grad_norm=...) or Trainer(clip_grad_value=...) clips; other ways of clipping go into "
        "on_before_optimizer_step(self, trainer, optimizer)"
    ),
    "optimizer_zero_grad": Method("remove it: gradients are cleared after each step"),
    "configure_callbacks": Method("Trainer(callbacks=[...])"),
    "configure_sharded_model": Method("def configure_model(self)"),
    "training_epoch_end": Method(_EPOCH_END.format("on_train_epoch_end")),
    "validation_epoch_end": Method(_EPOCH_END.format("on_validation_end")),
    "test_epoch_end": Method(_EPOCH_END.format("on_test_end")),
    "predict_epoch_end": Method(_EPOCH_END.format("on_predict_end")),
    "training_step_end": Method("return the loss from training_step; on_step_end(self, trainer, outputs)"),
    "validation_step_end": Method("on_validation_step_end(self, trainer, output, batch, batch_idx)"),
    "test_step_end": Method("on_test_step_end(self, trainer, output, batch, batch_idx)"),
    "tbptt_split_batch": Method(
        "split the batch in training_step, with self.automatic_optimization = False"
    ),
    "get_progress_bar_dict": Method("self.log(name, value, prog_bar=True)"),
    # Hugging Face
    "compute_loss": Method(
        "def training_step(self, batch, batch_idx) returns the loss", ("model", "inputs")
    ),
    "prediction_step": Method("def validation_step(self, batch, batch_idx)", ("model", "inputs")),
    "compute_metrics": Method("log values in validation_step", ("eval_pred",)),
    "create_optimizer": _OPTIMIZERS,
    "create_scheduler": _OPTIMIZERS,
    "create_optimizer_and_scheduler": _OPTIMIZERS,
    "get_train_dataloader": Method("def train_dataloader(self)"),
    "get_eval_dataloader": Method("def val_dataloader(self)"),
    "get_test_dataloader": Method("def test_dataloader(self)"),
    # Composer
    "loss": Method(
        "def training_step(self, batch, batch_idx): return self.loss(self(batch), batch)",
        ("outputs", "batch"),
    ),
    "eval_forward": Method("def validation_step(self, batch, batch_idx)", ("batch",)),
    "update_metric": Method("log values or torchmetrics objects in validation_step", ("batch", "outputs")),
    "get_metrics": Method("log values or torchmetrics objects in validation_step", ("is_train",)),
}
DATAMODULE_METHODS = {
    name: MODULE_METHODS[name]
    for name in ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
}
_COMPOSER = {
    "fit_start": "on_fit_start(self, trainer)",
    "fit_end": "on_fit_end(self, trainer)",
    "epoch_start": "on_train_epoch_start(self, trainer)",
    "epoch_end": "on_train_epoch_end(self, trainer)",
    "batch_start": "on_step_start(self, trainer, batches)",
    "batch_end": "on_step_end(self, trainer, outputs)",
    "before_train_batch": "on_step_start(self, trainer, batches)",
    "after_train_batch": "on_step_end(self, trainer, outputs)",
    "before_backward": "on_before_optimizer_step(self, trainer, optimizer)",
    "after_backward": "on_before_optimizer_step(self, trainer, optimizer)",
    "batch_checkpoint": "on_step_boundary(self, trainer)",
    "epoch_checkpoint": "on_step_boundary(self, trainer)",
    "before_load": "on_load_checkpoint(self, trainer, state)",
    "after_load": "on_load_checkpoint(self, trainer, state)",
    "eval_start": "on_validation_start(self, trainer)",
    "eval_batch_end": "on_validation_step_end(self, trainer, output, batch, batch_idx)",
    "eval_end": "on_validation_end(self, trainer)",
    "predict_start": "on_predict_start(self, trainer)",
    "predict_end": "on_predict_end(self, trainer)",
    "close": "on_teardown(self, trainer, stage)",
    "post_close": "on_teardown(self, trainer, stage)",
}
CALLBACK_METHODS = {
    "setup": Method("def on_setup(self, trainer, stage)", ("trainer",)),
    "teardown": Method("def on_teardown(self, trainer, stage)", ("trainer",)),
    **{name: Method(f"def {ours}", ("state", "logger")) for name, ours in _COMPOSER.items()},
}
_FIT_ARGUMENTS = ("train_dataloader", "val_dataloader", "datamodule", "resume", "allow", "decay")
_EVALUATION_ARGUMENTS = ("dataloader", "datamodule", "weights")
_OF_THE_TRAINER = {
    name: ours
    if " " in ours
    else f"it is an argument of the Trainer: Trainer({ours.partition('=')[0]}=...)"
    for name, ours in TRAINER_PEERS.items()
    if not ours.startswith(("fit(", "trainer."))
}


def refuse_arguments(method: str, unknown: dict[str, Any]) -> None:
    """Refuse arguments of ``fit``, ``validate``, ``test`` or ``predict`` that are none.

    Raises:
        PacelineError: one report of all of them, with the names that were meant.
    """
    known, peers = (
        (_FIT_ARGUMENTS, _FIT_PEERS) if method == "fit" else (_EVALUATION_ARGUMENTS, _EVALUATION_PEERS)
    )
    from .arguments import TrainerArguments

    own = {
        name: f"it is an argument of the Trainer: Trainer({name}=...)"
        for name in TrainerArguments.model_fields
    }
    refuse_unknown(method, unknown, known, own | _OF_THE_TRAINER | peers)


def attribute_hint(name: str, owner: type) -> str:
    """The end of a message about an attribute that does not exist: the name that was meant, if any."""
    ours = _ATTRIBUTE_PEERS.get(name) or _in_a_part(name)
    if ours:
        return f"; use {ours}"
    near = None if name.startswith("_") else nearest(name, [n for n in dir(owner) if n[0] != "_"])
    return f"; did you mean {near}?" if near else ""


def _in_a_part(name: str) -> str | None:
    """The part of the trainer that has the attribute, and how it is called."""
    for part, promised in _PARTS.items():
        found = vars(promised).get(name)
        if found is not None and name[0] != "_":
            return f"{part}.{name}{_call_of(found)}"
    return None


def _call_of(found: Any) -> str:
    """The parentheses of a method, with the arguments that it needs; nothing for a property."""
    if not inspect.isfunction(found):
        return ""
    parameters = [*inspect.signature(found).parameters.values()][1:]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return f"({', '.join(needed)})"
